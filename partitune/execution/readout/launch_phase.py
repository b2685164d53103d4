"""How far an engine's start has come, from its own log.

Decision: five phases, each with a time limit of its own, because "did not start in an hour" tells nobody whether nodes
did not find one another, weights were slow or graphs were captured. A phase begins with a line that the engine writes;
phases never go back. Time-outs and failure causes name the phase that was going on.

Source: vLLM 0.32.0 `v1/engine/core.py`, `distributed/parallel_state.py`, `v1/worker/{gpu,cpu}_model_runner.py`,
`v1/worker/gpu/model_runner.py`, `v1/core/kv_cache_utils.py`; uvicorn's own words; SGLang 0.5.23
`srt/distributed/bootstrap.py`, `srt/model_executor/model_runner.py`, `srt/managers/scheduler.py`,
`srt/entrypoints/http_server.py`.
"""

from __future__ import annotations

import re
from enum import IntEnum


class Phase(IntEnum):
    """What is going on."""

    SPAWN = 0  # processes start and read their arguments
    RENDEZVOUS = 1  # ranks find one another
    LOAD = 2  # weights
    CAPTURE = 3  # profile run, KV cache, compilation, graphs
    READY = 4  # it serves

    @property
    def going_on(self) -> str:
        """As part of a sentence: `while loading weights`."""
        return _GOING_ON[self]


_GOING_ON = {
    Phase.SPAWN: "while its processes started",
    Phase.RENDEZVOUS: "while its processes looked for one another",
    Phase.LOAD: "while loading weights",
    Phase.CAPTURE: "while it profiled, compiled or captured",
    Phase.READY: "while serving",
}

_BEGINS: tuple[tuple[Phase, re.Pattern[str]], ...] = tuple(
    (phase, re.compile(pattern))
    for phase, pattern in (
        (Phase.READY, r"^INFO: +Application startup complete|The server is fired up and ready to roll"),
        (Phase.CAPTURE, r"^Model loading took|^Warming up model for the compilation|^Available KV cache memory"),
        (Phase.CAPTURE, r"KV cache size: [\d,]+ tokens|^Load weight end\.|^max_total_num_tokens=\d"),
        (Phase.LOAD, r"is assigned as DP rank|^Starting to load model|^Load weight begin\."),
        (Phase.RENDEZVOUS, r"^Initializing a V1 LLM engine|^world_size=\d+ rank=\d+|^Init parallel begin"),
    )
)


def phase_begun_by(message: str) -> Phase | None:
    """The phase that has begun when the engine writes `message`; None: the line says nothing about it."""
    for phase, pattern in _BEGINS:
        if pattern.search(message):
            return phase
    return None
