"""What a family reader returns: the layer stack of the text model and what only the family knows about it.

Decision: families do not build an Architecture. Embedding, head, vision tower, name and source are the same for all and
are added once, in `reader.py`; so a family module is only the shape of its layers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from partitune.models.architecture import Layer
from partitune.models.fields import Fields
from partitune.models.quantisation import Quantisation
from partitune.models.weight_counter import WeightCounter


@dataclass(frozen=True, slots=True)
class Drafter:
    """Multi-token-prediction modules of a checkpoint, without the embedding and head they share with the model."""

    layers: int = 0
    params: int = 0
    weight_bytes: float = 0.0


NO_DRAFTER = Drafter()


@dataclass(frozen=True, slots=True)
class Stack:
    """The layers of a text model."""

    layers: tuple[Layer, ...]
    drafter: Drafter = NO_DRAFTER
    tied: bool = False  # the family's default when the config does not say
    illegal_cuts: frozenset[int] = frozenset()
    residual_block: int | None = None
    handoff_base: int = 2
    notes: tuple[str, ...] = ()


FamilyReader = Callable[[Fields, Quantisation], Stack]


def drafter(
    quantisation: Quantisation, layers: Sequence[Layer], hidden: int, *, fusions: int, halves: bool = False
) -> Drafter:
    """Drafter of `layers`, with `fusions` projections of (embedding, hidden state) to hidden and their three norms.

    Without layers there is none.

    vLLM 0.32 `model_executor/models/deepseek_mtp.py`: eh_proj [hidden, 2 hidden], enorm, hnorm, shared_head.norm.
    DeepSeek-V4 projects each of the two by itself, quantised (`halves`).
    """
    if not layers:
        return NO_DRAFTER
    counter = WeightCounter(quantisation, "mtp")
    for _ in range(fusions):
        if halves:
            counter.matrix("e_proj", hidden, hidden)
            counter.matrix("h_proj", hidden, hidden)
        else:
            counter.matrix("eh_proj", hidden, 2 * hidden, plain=True)
        counter.vector(3 * hidden)
    return Drafter(
        layers=len(layers),
        params=counter.params + sum(layer.params for layer in layers),
        weight_bytes=counter.weight_bytes + sum(layer.weight_bytes for layer in layers),
    )


def cuts_inside(readers_to_source: Sequence[int]) -> frozenset[int]:
    """Boundaries that part a layer from the earlier layer it reads from.

    Args:
        readers_to_source: for every layer, the layer whose cache or index it reads (itself, when it owns one).

    Boundary b is illegal when a layer at or after b reads from a layer before b.
    """
    illegal: set[int] = set()
    for layer, source in enumerate(readers_to_source):
        illegal.update(range(source + 1, layer + 1))
    return frozenset(illegal)
