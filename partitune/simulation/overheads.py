"""The small times around the GPU work of a step.

Decision: one value that every engine's scheduler takes, with all times zero by default, so that a recorded schedule,
whose engine took no time, is replayed by the same code that predicts a server.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Overheads:
    """Seconds beside the stages' own work. All zero is the engine of the recorded schedules."""

    engine_step_s: float = 0.0  # engine core: schedule, serialise, dispatch and update of one non-empty step
    empty_step_s: float = 0.0  # engine core: after a step in which nothing was scheduled
    sample_s: float = 0.0  # last stage: sampler beyond what the stage costs hold
    broadcast_s: float = 0.0  # sampled tokens from the last stage to the others (async-v1, async-v2, sync-v2)
    d2h_s: float = 0.0  # sampled tokens from the last stage's GPU to the engine core
    engine_request_s: float = 0.0  # engine core: as engine_step_s, for every request in the step

    def engine_s(self, requests: int) -> float:
        """Seconds of the engine core for a step that holds `requests` requests."""
        return self.engine_step_s + self.engine_request_s * requests
