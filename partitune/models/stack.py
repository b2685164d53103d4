"""What a family reader returns: how many layers the text model has and what is in each.

Decision: families do not build an Architecture. Embedding, head, vision tower, name and source are the same for all and
are added once, in `reader.py`; layers and drafter are put together here; so a family module is only the shape of its
layers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from partitune.models.architecture import AttentionBlock, CutKind, FfnBlock, Layer
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation, WeightFormat
from partitune.models.weight_counter import WeightCounter

#: The two halves of a layer, from an empty counter of its module (`model.layers.3`) and its index.
Blocks = Callable[[WeightCounter, int], tuple[AttentionBlock, FfnBlock]]


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a text model, and of the multi-token-prediction modules in its checkpoint."""

    count: int
    blocks: Blocks  # draft layers come after the others: their indexes start at `count`
    norms: int = 2  # hidden-wide vectors a layer
    drafted: int = 0  # draft layers
    fusions: int | None = None  # projections of (embedding, hidden state) to hidden; None: one a draft layer
    halves: bool = False  # each of the two is projected by itself, quantised (DeepSeek-V4)
    expert_format: WeightFormat | None = None  # of routed experts, where it is not in quantization_config
    tied: bool = False  # the family's default when the config does not say
    bound_cuts: Mapping[CutKind, frozenset[int]] = field(default_factory=dict)
    residual_block: int | None = None
    handoff_base: int = 2
    notes: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()  # what makes every figure of the model uncertain

    def layers(self, quantisation: Quantisation, hidden: int) -> tuple[tuple[Layer, ...], WeightCounter]:
        """The layers, and what the drafter weighs without the embedding and head it shares with the model.

        Args:
            quantisation: what the checkpoint stores its matrices in.
            hidden: width of the model.

        Raises:
            SpecError: a key that only some kind of layer needs is missing or ill-typed.

        vLLM 0.32 `model_executor/models/deepseek_mtp.py`: eh_proj [hidden, 2 hidden], enorm, hnorm, shared_head.norm.
        """
        if self.expert_format is not None:
            quantisation = replace(quantisation, experts=self.expert_format)
        layers = []
        for index in range(self.count + self.drafted):
            attention, ffn = self.blocks(WeightCounter(quantisation, f"model.layers.{index}"), index)
            layers.append(Layer(index, attention, ffn, self.norms * hidden))
        drafter = WeightCounter(quantisation, "mtp")
        for _ in range(self.drafted if self.fusions is None else self.fusions):
            if self.halves:
                drafter.matrix("e_proj", hidden, hidden)
                drafter.matrix("h_proj", hidden, hidden)
            else:
                drafter.matrix("eh_proj", hidden, 2 * hidden, plain=True)
            drafter.vector(3 * hidden)
        for layer in layers[self.count :]:
            drafter.params += layer.params
            drafter.weight_bytes += layer.weight_bytes
        return tuple(layers[: self.count]), drafter


#: Reads the fields of a text model; raises SpecError for what is missing, ill-typed or contradicts itself.
FamilyReader = Callable[[Fields], Stack]


def cuts_inside(readers_to_source: Sequence[int]) -> frozenset[int]:
    """Boundaries that part a layer from the earlier layer it reads from.

    Args:
        readers_to_source: for every layer, the layer whose cache or index it reads (itself, when it owns one).

    Boundary b parts them when a layer at or after b reads from a layer before b.
    """
    parting: set[int] = set()
    for layer, source in enumerate(readers_to_source):
        parting.update(range(source + 1, layer + 1))
    return frozenset(parting)
