"""What a run that record_sglang_schedules.py records is made of; the runs themselves are in YAML files beside it.

Decision: a scenario is small (a few hundred batches) and names everything the scheduler looks at, so that the recording
can be read without the engine.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

#: Every rule of the pipeline and the scheduler; no prompt begins like another.
SCENARIOS = Path(__file__).with_suffix(".yaml")


@dataclass(frozen=True)
class Scenario:
    """One run. Requests: `count` with lengths drawn evenly, arrivals `gap` seconds apart on average (0: a burst).

    With `groups` a prompt begins with what one of so many groups shares, once more on each further level, and with
    `conversations` all but so many requests continue the one so many before; `prompt` is then what they add.
    """

    name: str
    desc: str
    pp: int = 4
    count: int = 16
    prompt: tuple[int, int] = (20, 60)
    output: tuple[int, int] = (5, 20)
    gap: float = 0.0
    groups: int = 0
    levels: int = 1
    shared: tuple[int, int] = (0, 0)  # tokens a level
    conversations: int = 0
    seed: int = 0
    async_batch_depth: int = 0
    max_running_requests: int = 32
    pp_max_micro_batch_size: int | None = None
    chunked_prefill_size: int | None = 128  # None: off
    max_prefill_tokens: int = 16384
    prefill_max_requests: int | None = None
    prefill_decode_interval: int | None = None
    enable_mixed_chunk: bool = False
    dynamic_chunking: tuple[float, float] | None = None  # fitted a, b
    schedule_conservativeness: float = 1.0
    schedule_policy: str = "fcfs"
    page_size: int = 1
    num_tokens: int = 100_000
    max_model_len: int = 4096
    radix_cache: bool = True
    ignore_eos: bool = True
    comm_overlap: bool = False
    skip_pure_chunked_output: bool = False
    base: float = 1.0
    per_token: float = 0.01
    scale: tuple[float, ...] = ()
    handoff_base: float = 0.0
    handoff_per_token: float = 0.0
    ring_s: float = 0.0
    d2h_s: float = 0.0
    sample_s: float = 0.0
    engine_step_s: float = 0.0
    empty_step_s: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale or (1.0,) * self.pp)

    def requests(self) -> list[dict[str, Any]]:
        """The requests, the same on every machine."""
        drawn = random.Random(f"{self.name}-{self.seed}")
        now = 0.0
        found: list[dict[str, Any]] = []
        for number in range(self.count):
            request: dict[str, Any] = {
                "id": str(number),
                "arrival": round(now, 3),
                "prompt_tokens": drawn.randint(*self.prompt),
                "output_tokens": drawn.randint(*self.output),
            }
            if self.conversations and number >= self.conversations:
                before = found[number - self.conversations]
                request["continues"] = before["id"]
                request["prompt_tokens"] += before["prompt_tokens"] + before["output_tokens"]
            elif self.groups:
                request["prefix"] = self._prefix(drawn)
                request["prompt_tokens"] += request["prefix"][-1]["tokens"]
            found.append(request)
            if self.gap:
                now += drawn.expovariate(1 / self.gap)
        return found

    def _prefix(self, drawn: random.Random) -> list[dict[str, Any]]:
        prefix, tokens = [], 0
        for level in range(self.levels):
            tokens += drawn.randint(*self.shared)
            prefix.append({"group": f"{level}-{drawn.randrange(self.groups)}", "tokens": tokens})
        return prefix

    @contextlib.contextmanager
    def environment(self) -> Iterator[None]:
        """The engine's environment variables of this run."""
        name = "SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM"
        os.environ[name] = str(int(self.skip_pure_chunked_output))
        try:
            yield
        finally:
            del os.environ[name]

    def as_record(self, **found: Any) -> dict[str, Any]:
        """One entry of the recording."""
        settings = asdict(self)
        for key in ("count", "prompt", "output", "gap", "seed", "groups", "levels", "shared", "conversations"):
            del settings[key]
        time = {key: settings.pop(key) for key in ("base", "per_token", "scale")}
        handoff = {"base": settings.pop("handoff_base"), "per_token": settings.pop("handoff_per_token")}
        return {**settings, "stage_time": time, "handoff": handoff, **found}


def scenarios(path: Path) -> list[Scenario]:
    """All runs of a file, in its order."""
    entries: list[dict[str, Any]] = yaml.safe_load(path.read_text("utf-8"))["scenarios"]
    found = []
    for entry in entries:
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        found.append(Scenario(**values))
    return found
