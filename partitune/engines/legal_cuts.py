"""Which partitions a model admits under one engine, as reasons for a person.

Decision: that layers belong together is a fact of the model, what becomes of them when they are parted is the engine's
and its release's: one refuses to start, another writes wrong text without a word, a third hands over what is missing.
So a model names its bound boundaries by kind, an engine says what each kind comes to, and whoever judges a partition
has both from `CutLimits`. `planning.planner` has the same limits as windows for the solver. A kind of which nobody read
what an engine does is not used: wrong text is found by nobody.

Every stage owns at least one layer, under any engine: vLLM's `get_pp_indices` allows zero and the KV planner then
divides by zero; SGLang caps the tokens of such a stage (0.5.23 `model_executor/pool_configurator.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from partitune.engines.versions import Version
from partitune.models.architecture import Architecture, CutKind
from partitune.partition import Partition


class CutRule(NamedTuple):
    """What an engine does where a cut parts layers that belong together."""

    outcome: str  # in words, behind "the cut before layer 3 ..."
    source: str  # engine file and version


#: Of every kind what happens, from which release on, oldest first; None: the engine makes such a cut work.
CutRules = Mapping[CutKind, Sequence[tuple[Version, CutRule | None]]]


@dataclass(frozen=True, slots=True)
class CutLimits:
    """What one release of one engine does not survive in one model."""

    bound: Mapping[int, str]  # boundary (a stage ends after layer b-1) -> why it must not be used, with the source
    keeps_token_kv: bool  # whether every stage needs a layer that keeps KV per token

    def reasons(self, architecture: Architecture, partition: Sequence[int]) -> tuple[str, ...]:
        """Every reason why `partition` cannot serve `architecture`; empty when it can."""
        layers, ranges, name = len(architecture.layers), Partition(partition).ranges, architecture.name
        reasons = []
        if sum(partition) != layers:
            reasons.append(f"{Partition(partition).text} sums to {sum(partition)}, {name} has {layers} layers")
        token_kv = [layer.has_token_kv for layer in architecture.layers]
        for stage, (start, end) in enumerate(ranges):
            if end <= start:
                reasons.append(f"stage {stage} has no layer")
            elif self.keeps_token_kv and not any(token_kv[start:end]):
                reasons.append(
                    f"stage {stage} (layers {start}-{end - 1}) has no layer with KV per token: {name} is a hybrid and "
                    "needs at least one attention layer on every stage"
                )
        reasons += [f"the cut before layer {cut} {self.bound[cut]}" for cut, _ in ranges[1:] if cut in self.bound]
        return tuple(reasons)


def bound_cuts(architecture: Architecture, version: Version, engine: str, rules: CutRules) -> dict[int, str]:
    """The boundaries that must not be used, each with the reason and its source.

    Args:
        architecture: the model.
        version: the release.
        engine: as people write it.
        rules: the engine's, by kind.
    """
    bound: dict[int, str] = {}
    for kind, boundaries in architecture.bound_cuts.items():
        unread = CutRule(f"nobody read what {engine} does there", "partitune")
        of_kind = rules.get(kind, [(Version(0, 0), unread)])
        rule = next((rule for since, rule in reversed(of_kind) if since <= version), None)
        if rule is not None:
            text = f"parts layers where {kind.meaning}: {rule.outcome} [{rule.source}]"
            bound = {**dict.fromkeys(boundaries, text), **bound}
    return dict(sorted(bound.items()))
