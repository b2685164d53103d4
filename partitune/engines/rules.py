"""What an engine takes and refuses: its spelling, its defaults, its own way to divide layers, and every rule it checks.

Decision: rules are reported all together, each with its source, because a person who fixes one at a time launches once
per rule. `FLAG_RULES` and `SIZE_RULES` tell a typing error and an impossible layout from a combination that a search
may run into.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

from partitune.candidate import FlagValue
from partitune.engines.architectures import Registry
from partitune.engines.default_splits import split
from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.known_times import KnownTimes
from partitune.engines.legal_cuts import CutLimits, CutRules, bound_cuts
from partitune.engines.quantisations import QuantisationTable
from partitune.engines.versions import Version, VersionRange, parse_version
from partitune.errors import Refused
from partitune.hardware.gpus import Gpu
from partitune.hardware.parallelism import Layout, RankOrder
from partitune.models.architecture import Architecture

#: Rules about one flag by itself: a person's typing error, not a combination that a search may run into.
FLAG_RULES = frozenset({"unknown-flag", "removed-flag", "flag-value"})

#: Rules about model and sizes alone: where one is broken no candidate can ever run.
SIZE_RULES = frozenset({
    "all2all-backend", "architecture-missing", "dcp", "expert-cut", "expert-width", "experts-missing",
    "fewer-layers-than-stages", "heads-over-tp", "kv-heads-over-tp", "no-pipeline-support", "nodes",
    "parallelism-missing", "pcp", "quantisation-missing", "stages-over-nodes",
})  # fmt: skip


class Violation(NamedTuple):
    """One rule that a deployment breaks."""

    rule: str  # short name
    message: str  # what was found and what is allowed
    source: str  # engine file and version, or report


class Rules(Protocol):
    """What one engine takes and refuses. What has a body here holds where an engine says nothing else."""

    versions_read: VersionRange  # the releases whose rules were read
    #: The releases under which kernels and whole servers were measured; None: none was.
    versions_measured: ClassVar[VersionRange | None] = None
    #: Its own ways to divide layers: since which release, 0.0 first, and the name in `SPLIT_RULES`.
    split_rules: Sequence[tuple[Version, str]]
    #: Flags and variables that partitune writes itself: name -> the key of a search space that they follow from.
    written_by_partitune: ClassVar[Mapping[str, str]]

    #: What varies where a search space does not say: flag -> its usual values.
    default_knobs: ClassVar[Mapping[str, Sequence[FlagValue]]] = MappingProxyType({})

    registry: Registry | None = None  # the classes that its releases have; None: nobody read them
    quantisations: QuantisationTable | None = None  # the methods that its releases take; None: nobody read them
    cut_rules: ClassVar[CutRules] = MappingProxyType({})  # what becomes of layers that a cut parts
    #: The first release in which a stage of a hybrid needs no layer that keeps KV per token; None: all need one.
    stages_of_states_since: ClassVar[Version | None] = None

    def cut_limits(self, architecture: Architecture, version: str) -> CutLimits:
        """Which boundaries of this model a stage must not end at. Raises SpecError: no version."""
        release, since = parse_version(version), self.stages_of_states_since
        bound = bound_cuts(architecture, release, self.versions_read.engine, self.cut_rules)
        return CutLimits(bound, architecture.is_hybrid and (since is None or release < since))

    def notes(self, version: str) -> tuple[str, ...]:
        """What is assumed about this version; empty when its rules were read and its times measured.

        Raises:
            SpecError: no version.
        """
        release, measured = parse_version(version), self.versions_measured
        return (*self.versions_read.notes(release), *(measured.time_notes(release) if measured else ()))

    def default_partition(self, layers: int, stages: int, version: str, rule: str | None = None) -> tuple[int, ...]:
        """The engine's own split, or that of a named rule.

        Raises:
            InfeasibleSpace: fewer layers than stages.
            SpecError: an unknown rule, or no version.
        """
        release = parse_version(version)
        own = next(name for since, name in reversed(self.split_rules) if since <= release)
        return split(layers, stages, own if rule is None else rule)

    def resolved_layout(self, layout: Layout, architecture: Architecture, version: str) -> Layout:
        """`layout` with what a release derives from it: how tokens reach their experts, and in what portions."""
        return layout

    def rank_order(self, architecture: Architecture) -> RankOrder:
        """How it numbers the ranks of this model's replicas."""
        return RankOrder.REPLICAS_OUTSIDE

    def default_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """Value that the engine gives each scheduling and memory flag that `deployment` does not set."""

    def effective_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The defaults overlaid with the deployment's own flags."""
        return {**self.default_flags(deployment), **command_flags(deployment.flags)}

    def not_modelled(self, deployment: Deployment) -> Mapping[str, str]:
        """Flags of the deployment that change bytes or times in the engine and no figure here, each with the reason.

        A flag that has the engine's own default changes nothing and is not among them.
        """
        return {}

    def check(self, deployment: Deployment) -> tuple[Violation, ...]:
        """Every rule that the deployment breaks. Without a partition the engine's default split is not judged."""

    #: What is known of times that no table has, in one release or another.
    known_times: ClassVar[Sequence[KnownTimes]] = ()

    def model_notes(self, architecture: Architecture, gpu: Gpu, version: str) -> tuple[str, ...]:
        """What is assumed about this model on this GPU under this release, beside `notes`. Raises SpecError."""
        release = parse_version(version)
        of_class = self.registry.notes(architecture.architecture) if self.registry else ()
        return (*of_class, *(known.text for known in self.known_times if known.concerns(architecture, gpu, release)))

    def assumed(self, deployment: Deployment) -> tuple[str, ...]:
        """What nobody can know of this start and is assumed, beside `notes` and `model_notes`."""
        return ()

    def architecture_faults(self, deployment: Deployment) -> Iterator[Violation]:
        """Where this release lacks the model's class, its pipeline, or what its checkpoint is stored in."""
        for table in (self.registry, self.quantisations):
            if table:
                yield from (Violation(*fault) for fault in table.faults(deployment))

    def partition_faults(self, deployment: Deployment, source: str) -> Iterator[Violation]:
        """What every engine refuses of a partition that was chosen; `source` is where this one does."""
        if (partition := deployment.partition) is None:
            return
        if len(partition) != deployment.stages:
            message = f"the partition has {len(partition)} entries for {deployment.stages} stages"
            yield Violation("partition", message, source)
        limits = self.cut_limits(deployment.architecture, deployment.version)
        for reason in limits.reasons(deployment.architecture, partition):
            yield Violation("partition", reason, source)


def kv_heads(architecture: Architecture) -> set[int]:
    """KV heads of the layers that keep whole heads; latent attention has one for all, fixed states have none."""
    blocks = [layer.attention for layer in architecture.layers if layer.has_token_kv]
    return {block.shards for block in blocks if block.shards > 1}


def head_faults(deployment: Deployment, source: str) -> Iterator[Violation]:
    """Where tensor ranks cannot share the attention heads; `source` is where the engine says so.

    The one rule that every engine's models share: vLLM 0.32 `config/model.py` (verify_with_parallel_config) and
    `model_executor/models/llama.py`; SGLang 0.5.23 `srt/models/llama.py`; the other models of both assert the same.
    """
    tp, heads = deployment.tp, max(layer.attention.heads for layer in deployment.architecture.layers)
    if heads % tp:
        legal = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        message = f"tensor parallel size {tp} does not divide {heads} attention heads; use {legal}"
        yield Violation("heads-over-tp", message, source)
        return
    for count in sorted(kv_heads(deployment.architecture)):
        if count % tp and tp % count:
            message = f"tensor parallel size {tp} neither divides {count} KV heads nor is a multiple of them"
            yield Violation("kv-heads-over-tp", message, source)


def refused(violations: Sequence[Violation]) -> Refused:
    """The error of a candidate that breaks `violations`, graded by how many."""
    reasons = "; ".join(f"{violation.message} [{violation.source}]" for violation in violations)
    return Refused(f"the engine refuses this: {reasons}", excess=float(len(violations)))
