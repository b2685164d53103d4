"""Record what vLLM's own scheduler does under pipeline parallelism, without a GPU and without a worker.

    python -m benchmarks.record_vllm_schedules --vllm PATH --out tests/data/schedules_options_vllm_0_32_0.json

PATH is a directory that holds the package `vllm` (an unpacked wheel or a site-packages), run by a Python that has its
light dependencies (torch for CPU, transformers, msgspec, ...).

Decision: the real `Scheduler` / `AsyncScheduler` runs, with its KV-cache manager, block pool and queues; replaced are
the workers (a stage takes `scale[s] * (base + per_token * tokens)`) and the engine core's loop, which is written out
here as in `v1/engine/core.py`. Loads are drawn at random to meet each other: shared prefixes, priorities, requests that
stop early, few KV blocks, prompts held back (`prefill_schedule_interval`). Written against 0.32.0.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import deque
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

_STOP = -7  # the token that ends a request
_SLOTS = {"R1": lambda pp: max(pp, 2), "R2": lambda pp: pp, "R3": lambda pp: pp + 1, "R4": lambda pp: pp}


def scenario(number: int) -> dict[str, Any]:
    """A small load and engine settings under which requests get into each other's way."""
    draw = random.Random(number)
    regime, pp = draw.choice(("R1", "R2", "R3", "R3", "R4")), draw.randint(1, 4)
    budget, block = draw.choice((16, 32, 64, 256)), draw.choice((1, 2, 4, 16))
    groups = draw.choice(((), ("a",), ("a",), ("a", "b")))
    requests: list[dict[str, Any]] = []
    for name in range(draw.randint(2, 14)):
        prompt = draw.randint(1, 70)
        shares = bool(groups) and draw.random() < 0.8
        requests.append(
            {
                "id": f"{name:02d}",
                "arrival": float(draw.choice((0, 0, draw.randint(0, 100)))),
                "prompt_tokens": prompt,
                "output_tokens": draw.randint(1, 24),
                "priority": draw.choice((0, 0, 0, 1, 2)),
                "stops_early": draw.random() < 0.2,
                "prefix": {"group": draw.choice(groups), "tokens": draw.randint(0, prompt)} if shares else None,
            }
        )
    longest = max(each["prompt_tokens"] + each["output_tokens"] for each in requests)
    return {
        "name": f"options-{number:04d}",
        "desc": "random load under random options",
        "regime": regime,
        "pp": pp,
        "async_scheduling": regime in ("R1", "R3"),
        "queue_slots": _SLOTS[regime](pp),
        "max_num_batched_tokens": budget,
        "max_num_seqs": draw.randint(1, min(budget, 16)),
        "block_size": block,
        "num_blocks": -(-longest // block) + 1 + draw.choice((0, 1, 3, 8, 20, 60, 1000)),
        "long_prefill_token_threshold": draw.choice((0, 0, 5, 20)),
        "max_model_len": longest + draw.choice((0, 1, 2, 1000)),
        "enable_prefix_caching": draw.random() < 0.8,
        "scheduling_policy": draw.choice(("fcfs", "priority")),
        "prefill_schedule_interval": draw.choice((1, 1, 1, 3, 7)),
        "watermark": draw.choice((0.0, 0.0, 0.0, 0.05)),
        "stage_time": {
            "base": draw.choice((1.0, 2.0)),
            "per_token": draw.choice((0.0, 0.0625)),
            "scale": [float(draw.randint(1, 3)) for _ in range(pp)],
        },
        "requests": sorted(requests, key=lambda each: float(each["arrival"])),
    }


def scheduler_for(record: dict[str, Any]) -> Any:
    """The engine's scheduler; the configuration holds only what it reads."""
    import torch  # type: ignore[import-not-found]
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # type: ignore[import-not-found]
    from vllm.v1.core.sched.scheduler import Scheduler  # type: ignore[import-not-found]
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec  # type: ignore[import-not-found]

    block = record["block_size"]
    scheduler_config = SimpleNamespace(
        policy=record["scheduling_policy"],
        max_num_seqs=record["max_num_seqs"],
        max_num_active_seqs=None,
        max_num_scheduled_tokens=None,
        max_num_batched_tokens=record["max_num_batched_tokens"],
        long_prefill_token_threshold=record["long_prefill_token_threshold"],
        long_prefill_token_threshold_adaptive=False,
        watermark=record["watermark"],
        scheduler_reserve_full_isl=True,
        enable_chunked_prefill=True,
        async_scheduling=record["async_scheduling"],
    )
    cache_config = SimpleNamespace(
        num_gpu_blocks=record["num_blocks"],
        enable_prefix_caching=record["enable_prefix_caching"],
        block_size=block,
        enable_mamba_shared_prefix_checkpoint=False,
        mamba_cache_mode="none",
    )
    config = SimpleNamespace(
        scheduler_config=scheduler_config,
        cache_config=cache_config,
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=record["pp"],
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_index=0,
        ),
        model_config=SimpleNamespace(
            uses_mrope=False,
            is_encoder_decoder=False,
            max_model_len=record["max_model_len"],
            runner_type="generate",
            is_diffusion=False,
            supports_multimodal_inputs=False,
            return_sampling_mask=False,
        ),
        observability_config=SimpleNamespace(
            per_request_spec_decode_metrics="none",
            kv_cache_metrics=False,
            enable_mfu_metrics=False,
            enable_logging_iteration_details=False,
        ),
        ec_manager_config=SimpleNamespace(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=SimpleNamespace(enabled=False),
        lora_config=None,
        kv_events_config=None,
        kv_transfer_config=None,
        ec_transfer_config=None,
        speculative_config=None,
        is_mm_encoder_only=False,
        max_concurrent_batches=record["queue_slots"],
        max_in_flight_tokens=record["queue_slots"] * record["max_num_batched_tokens"],
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        use_v2_model_runner=record["regime"] in ("R3", "R4"),
    )
    spec = FullAttentionSpec(block_size=block, num_kv_heads=1, head_size=1, dtype=torch.float32)
    caches = KVCacheConfig(
        num_blocks=record["num_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    engine_scheduler = AsyncScheduler if record["async_scheduling"] else Scheduler
    return engine_scheduler(
        vllm_config=config,
        kv_cache_config=caches,
        structured_output_manager=SimpleNamespace(accept_tokens=lambda *_: True),
        block_size=block,
        log_stats=True,
    )


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


def engine_request(record: dict[str, Any], request: dict[str, Any], number: int, fresh: Any) -> Any:
    """The engine's request: tokens nobody else has, behind those of its group."""
    from vllm.sampling_params import SamplingParams  # type: ignore[import-not-found]
    from vllm.utils.hashing import sha256  # type: ignore[import-not-found]
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher  # type: ignore[import-not-found]
    from vllm.v1.request import Request  # type: ignore[import-not-found]

    prefix = request["prefix"]
    tokens = [] if prefix is None else [ord(prefix["group"]) * 1000 + place for place in range(prefix["tokens"])]
    tokens += [next(fresh) for _ in range(request["prompt_tokens"] - len(tokens))]
    early = request["stops_early"]
    most = record["max_model_len"] - request["prompt_tokens"] if early else request["output_tokens"]
    sampling = SamplingParams(max_tokens=most, ignore_eos=not early)
    sampling._eos_token_id = _STOP
    sampling.skip_reading_prefix_cache = False
    hasher = get_request_block_hasher(record["block_size"], sha256) if record["enable_prefix_caching"] else None
    return Request(
        request["id"], tokens, sampling, None, arrival_time=number, priority=request["priority"], block_hasher=hasher
    )


def recorded(record: dict[str, Any]) -> dict[str, Any]:
    """`record` with what the engine made of it. The loop is `step_with_batch_queue` and `run_busy_loop`."""
    from vllm.v1.outputs import ModelRunnerOutput  # type: ignore[import-not-found]

    scheduler, stages = scheduler_for(record), Stages(record)
    fresh, numbers = count(1_000_000), count()
    unsent = deque(record["requests"])
    length = {each["id"]: each["output_tokens"] for each in record["requests"]}
    made = dict.fromkeys(length, 0)
    queue: deque[tuple[float, Any, list[str]]] = deque()
    steps: list[dict[str, Any]] = []
    queries = hits = preemptions = turn = 0
    now = 0.0
    while True:
        while unsent and unsent[0]["arrival"] <= now:
            scheduler.add_request(engine_request(record, unsent.popleft(), next(numbers), fresh))
        if not queue and not scheduler.has_requests():
            if not unsent:
                break
            now = unsent[0]["arrival"]
            continue
        executed = False
        if scheduler.has_requests():
            decodes = {each.request_id for each in scheduler.running if not each.is_prefill_chunk}
            plan = scheduler.schedule(turn % record["prefill_schedule_interval"] != 0)
            stats = scheduler.kv_cache_manager.make_prefix_cache_stats()
            queries, hits = queries + stats.queries, hits + stats.hits
            preemptions += len(plan.preempted_req_ids or ())
            rows = dict(plan.num_scheduled_tokens)
            executed = bool(rows)
            sampled = [name for name in rows if not scheduler.requests[name].is_prefill_chunk]
            start, end = stages.run(now, rows, decodes, sampled) if executed else (None, now)
            steps.append({"dispatch": now, "start": start, "end": end, "tokens": rows})
            queue.append((end, plan, sampled))
            if len(queue) < record["queue_slots"] and (executed or scheduler.has_requests()):
                turn = turn + 1 if scheduler.has_unfinished_requests() else 0
                continue
        end, plan, sampled = queue.popleft()
        now = max(now, end)
        names = list(plan.num_scheduled_tokens)
        tokens: list[list[int]] = [[] for _ in names]
        for place, name in enumerate(names):
            if name in sampled:
                made[name] += 1
                tokens[place] = [_STOP if made[name] == length[name] else next(fresh)]
        places = {name: place for place, name in enumerate(names)}
        output = ModelRunnerOutput(names, places, tokens, logprobs=None, prompt_logprobs_dict={}, pooler_output=[])
        scheduler.update_from_output(plan, output)
        turn = turn + 1 if scheduler.has_unfinished_requests() else 0
    return record | {
        "steps": steps,
        "makespan": max(step["end"] for step in steps if step["start"] is not None),
        "stage_busy": stages.busy,
        "prefix_cache_queries": queries,
        "prefix_cache_hits": hits,
        "preemptions": preemptions,
    }


def main() -> None:
    """Record `--count` loads from `--first` on."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    sys.path.insert(0, str(arguments.vllm))
    from vllm import __version__  # type: ignore[import-not-found]
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import init_none_hash

    init_none_hash(sha256)
    records = [recorded(scenario(arguments.first + number)) for number in range(arguments.count)]
    for record in records:
        record["engine"] = f"vllm {__version__.split('+')[0]}"
    arguments.out.write_text("[" + ",\n".join(json.dumps(each, separators=(",", ":")) for each in records) + "]\n")
    hit = sum(record["prefix_cache_hits"] > 0 for record in records)
    again = sum(record["preemptions"] > 0 for record in records)
    print(f"{len(records)} recorded: {hit} with prefix hits, {again} with preemptions")


if __name__ == "__main__":
    main()
