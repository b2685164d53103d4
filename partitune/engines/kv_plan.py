"""What an engine allocates for KV under one partition, in words every engine shares.

Decision: blocks, whatever the engine calls them (SGLang: pages), because the tightest stage is the same question in
both: how many can each stage hold, how many can all, and how many bytes stay unused.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KvPlan:
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

    @property
    def limiting_stage(self) -> int:
        """The stage with the fewest blocks; the first of several."""
        return self.stage_blocks.index(min(self.stage_blocks))
