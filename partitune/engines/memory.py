"""What an engine keeps on its GPUs beside weights: the settings that decide a stage's memory, and its KV cache.

Decision: blocks, whatever the engine calls them (SGLang: pages), because the tightest stage is the same question in
both: how many can each stage hold, how many can all, and how many bytes stay unused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from partitune.costs.cost_model import Floats
from partitune.costs.host_reads import Offloaded
from partitune.costs.memory import MemorySettings
from partitune.engines.deployment import Deployment
from partitune.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class KvCache:
    """What the engine allocates. Bytes are per GPU."""

    num_blocks: int
    block_size: int  # tokens of one block of the layers that keep every token
    tokens: int  # "GPU KV cache size" of the log
    concurrency: float  # requests of max_model_len tokens
    stage_blocks: tuple[int, ...]  # what each stage alone could hold
    stage_block_bytes: tuple[int, ...]  # bytes of one block on each stage
    stranded_bytes: tuple[int, ...]  # free memory that the tightest stage leaves unused
    group_layers: tuple[int, ...]  # per stage: layers of its fullest group (the staircase)
    groups: int
    state_slots: int | None = None  # sequences whose fixed states fit, where an engine keeps a pool of them

    @property
    def limiting_stage(self) -> int:
        """The stage with the fewest blocks; the first of several."""
        return self.stage_blocks.index(min(self.stage_blocks))


class Memory(Protocol):
    """How one engine uses the memory of its GPUs. What has a body here holds where an engine says nothing else."""

    #: Flags by which alone `stored` and `offloaded` answer otherwise than without flags.
    storing_flags: ClassVar[Sequence[str]] = ()

    def stored(self, deployment: Deployment) -> Architecture:
        """The model as this start keeps it: weights quantised while loading, KV of the type that the flags name.

        Raises:
            SpecError: a type that the engine does not take for this model.
        """
        return deployment.architecture

    def offloaded(self, deployment: Deployment) -> Offloaded | None:  # noqa: ARG002  (the protocol's)
        """Weights that every GPU leaves in its host's memory; None: it leaves none."""
        return None

    def memory_settings(self, deployment: Deployment) -> MemorySettings:
        """What decides the memory of a stage, from the engine's own flags."""

    def kv_cache(self, deployment: Deployment, partition: Sequence[int], free_bytes: Sequence[int]) -> KvCache:
        """What the engine allocates when stage s has `free_bytes[s]` left on each of its GPUs.

        Raises:
            InfeasibleSpace: a stage cannot have a cache.
            OutOfMemory: a stage cannot hold the longest request.
        """

    def kv_blocks(self, deployment: Deployment, free_bytes: Floats) -> Floats:
        """Blocks per (stage, first layer, end layer), for the exact solver; shapes as in `partition.solver`."""

    def fewest_kv_blocks(self, deployment: Deployment) -> int:
        """Blocks without which the engine refuses to start: the longest request has to fit."""
