"""What a trace of an engine calls its steps, its workers and its files.

Decision: an engine says its own names, so that a simulated trace and a real one can be read side by side, and whoever
draws knows no engine.
"""

from __future__ import annotations

from typing import NamedTuple

from partitune.hardware.parallelism import Layout
from partitune.simulation.timeline import TracedBatch


class Rank(NamedTuple):
    """One GPU of the data rank that was simulated, the first."""

    stage: int
    tensor: int
    layout: Layout
    has_experts: bool

    @property
    def number(self) -> int:
        """Its place in the world; tensor ranks are neighbours."""
        return self.stage * self.layout.tp + self.tensor


class TraceNames:
    """Names for an engine that says none."""

    beside = "engine core"  # the process beside the stages
    about_beside = "schedules, dispatches, waits for the oldest batch"
    empty: str | None = None  # a step without tokens, as workers mark it; None: they run nothing

    def step(self, batch: TracedBatch) -> str:
        """One step on one stage."""
        return f"step of {batch.prompt_tokens + batch.decodes} tokens"

    def worker(self, rank: Rank) -> str:
        """The process of a rank."""
        return f"stage {rank.stage} rank {rank.number}"

    def file(self, rank: Rank) -> str:
        """The file that a rank writes."""
        return f"rank{rank.number}.trace.json.gz"
