"""The engine core's loop in virtual time around vLLM's scheduler.

Decision: the real `Scheduler` / `AsyncScheduler` runs, with its KV-cache manager, block pool and queues; replaced are
the workers (a stage takes `scale[s] * (base + per_token * tokens)`) and the loop, which is written out here as in
`v1/engine/core.py` (step_with_batch_queue, run_busy_loop, DPEngineCoreProc._should_throttle_prefills), the same from
0.30.0 to 0.33.0.
"""

# mypy: disable-error-code="import-not-found"
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.v1.outputs import ModelRunnerOutput

from benchmarks.vllm_engine import STOP, engine_request, scheduler_for
from benchmarks.vllm_wheel import Wheel

_LONGEST_PAUSE = 1000  # empty steps


class Stages:
    """The pipeline: a batch starts on a stage when it has arrived and the stage is free."""

    def __init__(self, record: dict[str, Any]) -> None:
        self._regime, self._time = record["regime"], record["stage_time"]
        self._free = [0.0] * record["pp"]
        self._gate = 0.0
        self._token: dict[str, float] = {}  # when a request's newest token is on every stage
        self.busy = [0.0] * record["pp"]

    def run(self, now: float, rows: dict[str, int], decodes: set[str], sampled: list[str]) -> tuple[float, float]:
        """Start on the first and end on the last stage."""
        start = max(now, self._free[0])
        if self._regime == "R1":
            start = max(start, self._gate)
        if self._regime in ("R3", "R4"):
            start = max([start, *(self._token[name] for name in rows if name in decodes)])
        first = start
        seconds = self._time["base"] + self._time["per_token"] * sum(rows.values())
        for stage, scale in enumerate(self._time["scale"]):
            end = max(start, self._free[stage]) + seconds * scale
            self.busy[stage] += seconds * scale
            start = self._free[stage] = end
        if sampled:
            self._gate = end
        self._token.update(dict.fromkeys(sampled, end))
        return first, end


class Texts:
    """Which token stands where: a group's members share the beginning, and what is behind it nobody else has.

    With `answers_shared` the answers are the group's as well: its next prompt goes on where they end.
    """

    def __init__(self, record: dict[str, Any]) -> None:
        self._shared = {each["id"]: each["prefix"] or {"group": "", "tokens": 0} for each in record["requests"]}
        self._own = {each["id"]: -1 - number for number, each in enumerate(record["requests"])}
        groups = sorted({each["group"] for each in self._shared.values()})
        self._groups = {group: number for number, group in enumerate(groups)}
        self._answers = record.get("ext", {}).get("answers_shared", False)

    def of(self, name: str) -> Callable[[int], int]:
        """The token of a request by its position."""
        prefix, own = self._shared[name], (1 + 2 * -self._own[name]) * 1_000_000
        length = float("inf") if self._answers and prefix["group"] else prefix["tokens"]
        group = 2 * (1 + self._groups[prefix["group"]]) * 1_000_000
        return lambda position: position + (group if position < length else own)


class EngineStands(Exception):
    """The engine has requests and schedules none of them, for good."""


class _Run:
    """One record, being recorded."""

    def __init__(self, wheel: Wheel, record: dict[str, Any]) -> None:
        self._record, self._texts = record, Texts(record)
        self._scheduler, self._stages = scheduler_for(wheel, record), Stages(record)
        self._unsent = deque(enumerate(record["requests"]))
        self._requests = {each["id"]: each for each in record["requests"]}
        self._made = dict.fromkeys(self._requests, 0)
        self._queue: deque[tuple[float, Any, list[str]]] = deque()
        self._turn, self._now = 0, 0.0
        own = hasattr(self._scheduler, "local_prefill_interval")  # since 0.33.0; until then only the core held prompts
        core = 1 if own else record["prefill_schedule_interval"]
        self._throttle = record.get("ext", {}).get("dp_throttle", core)
        self._counts = {"prefix_cache_queries": 0, "prefix_cache_hits": 0, "preemptions": 0}
        self._steps: list[dict[str, Any]] = []
        self._last_executed = 0  # step

    def recorded(self) -> dict[str, Any]:
        """What came of it."""
        while self._arrive():
            if self._scheduler.has_requests() and self._dispatch():
                continue
            self._process()
            if len(self._steps) - self._last_executed > _LONGEST_PAUSE:
                raise EngineStands(self._record["name"])
        return {
            "steps": self._steps,
            "makespan": max(step["end"] for step in self._steps if step["start"] is not None),
            "stage_busy": self._stages.busy,
            **self._counts,
        }

    def _arrive(self) -> bool:
        """Take in what has come; False: there is nothing left to do."""
        while True:
            while self._unsent and self._unsent[0][1]["arrival"] <= self._now:
                number, request = self._unsent.popleft()
                text = self._texts.of(request["id"])
                self._scheduler.add_request(engine_request(self._record, request, number, text))
            if self._queue or self._scheduler.has_requests():
                return True
            if not self._unsent:
                return False
            self._now = self._unsent[0][1]["arrival"]

    def _dispatch(self) -> bool:
        """One schedule() and what the stages make of it; True: there is room for another batch."""
        scheduler = self._scheduler
        decodes = {each.request_id for each in scheduler.running if not each.is_prefill_chunk}
        plan = scheduler.schedule(self._turn % self._throttle != 0)
        stats = scheduler.kv_cache_manager.make_prefix_cache_stats()
        for key, count in (
            ("prefix_cache_queries", stats.queries),
            ("prefix_cache_hits", stats.hits),
            ("preemptions", len(plan.preempted_req_ids or ())),
        ):
            self._counts[key] += count
        rows = dict(plan.num_scheduled_tokens)
        sampled = [name for name in rows if not scheduler.requests[name].is_prefill_chunk]
        start, end = self._stages.run(self._now, rows, decodes, sampled) if rows else (None, self._now)
        if rows:
            self._last_executed = len(self._steps)
        self._steps.append({"dispatch": self._now, "start": start, "end": end, "tokens": rows})
        self._queue.append((end, plan, sampled))
        if len(self._queue) < self._record["queue_slots"] and (rows or scheduler.has_requests()):
            self._count_turn()
            return True
        return False

    def _process(self) -> None:
        """Wait for the oldest batch, and tell the scheduler what it made."""
        end, plan, sampled = self._queue.popleft()
        self._now = max(self._now, end)
        names = list(plan.num_scheduled_tokens)
        tokens = [[self._token(name)] if name in sampled else [] for name in names]
        output = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: place for place, name in enumerate(names)},
            sampled_token_ids=tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._scheduler.update_from_output(plan, output)
        self._count_turn()

    def _token(self, name: str) -> int:
        """The next token of a request's answer."""
        request = self._requests[name]
        self._made[name] += 1
        if request["stops_early"] and self._made[name] == request["output_tokens"]:
            return STOP
        return self._texts.of(name)(request["prompt_tokens"] + self._made[name] - 1)

    def _count_turn(self) -> None:
        self._turn = self._turn + 1 if self._scheduler.has_unfinished_requests() else 0


def recorded(wheel: Wheel, record: dict[str, Any]) -> dict[str, Any]:
    """`record` with what the engine made of it; times are rounded to six digits, as in every recording."""
    made: dict[str, Any] = rounded(_Run(wheel, record).recorded())
    return record | {"engine": f"vllm {wheel.version}"} | made


def rounded(value: Any) -> Any:
    """Six digits everywhere."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value
