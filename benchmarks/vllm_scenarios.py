"""Loads and settings under which requests get into each other's way, drawn by kind and number.

Decision: a kind says which rule of the scheduler is put to the test, a number seeds everything else, so that the same
scenario can be recorded with another release, and fresh ones can be drawn that nobody has tuned to. Sizes are small:
tight KV and small budgets bring out in seconds what a real load brings out in hours. A record is spelled as
`partitune.engines.vllm.scheduler.recording` reads it; `ext` holds what the engine is configured with beyond that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Draw: TypeAlias = random.Random
Part: TypeAlias = "dict[str, Any]"

REGIMES = ("R1", "R2", "R3", "R4")
ENOUGH = 20_000  # KV blocks


def queue_slots(regime: str, pp: int) -> int:
    """Batches in flight: `config/vllm.py` max_concurrent_batches."""
    return {"R1": max(pp, 2), "R3": pp + 1}.get(regime, pp)


def load(
    draw: Draw,
    count: int,
    prompts: tuple[int, int] = (40, 900),
    outputs: tuple[int, int] = (20, 90),
    spacing: float = 0.2,
    shared: float = 0.0,
    priorities: tuple[int, ...] = (0,),
    early: float = 0.0,
) -> list[Part]:
    """`count` requests; a part of them, `shared`, begins like others of one of three groups."""
    requests, arrival = [], 0.0
    for number in range(count):
        arrival = round(arrival + draw.random() * 2 * spacing, 3)
        prompt = draw.randint(*prompts)
        prefix = {"group": f"g{draw.randrange(3)}", "tokens": draw.randint(prompt // 4, prompt)}
        requests.append(
            {
                "id": f"{number:03d}",
                "arrival": arrival,
                "prompt_tokens": prompt,
                "output_tokens": draw.randint(*outputs),
                "priority": draw.choice(priorities),
                "stops_early": draw.random() < early,
                "prefix": prefix if draw.random() < shared else None,
            }
        )
    return requests


def conversations(draw: Draw, count: int, turns: int) -> list[Part]:
    """Conversations whose next prompt holds the last one and its answer, a while after it was sent."""
    requests = []
    for talk in range(count):
        arrival, prompt = draw.random() * 6, draw.randint(100, 260)
        for turn in range(turns):
            output = draw.randint(20, 90)
            requests.append(
                {
                    "id": f"{talk * turns + turn:03d}",
                    "arrival": round(arrival, 3),
                    "prompt_tokens": prompt,
                    "output_tokens": output,
                    "priority": 0,
                    "stops_early": False,
                    "prefix": {"group": f"c{talk}", "tokens": prompt},
                }
            )
            arrival += 100 + draw.random() * 60
            prompt += output + draw.randint(10, 80)
    return sorted(requests, key=lambda each: float(each["arrival"]))


def _tight(draw: Draw, record: Part) -> int:
    """Blocks for one to three of the longest requests, whatever the groups ask for in flight, and the null block."""
    ext, block = record["ext"], record["block_size"]
    longest = -(-max(each["prompt_tokens"] + each["output_tokens"] for each in record["requests"]) // block)
    in_flight = record["queue_slots"] * min(record["max_num_batched_tokens"], longest * block)
    held = [min(longest, -(-(window + in_flight) // block)) + 1 for window in ext.get("windows", ())]
    states = ext.get("mamba_groups", 0) * min(longest, 3 + in_flight // block)
    one = ext.get("full_groups", 1) * longest + sum(held) + states
    return int(one * (1.0 + 2.0 * draw.random())) + 2


def _hybrid(draw: Draw, groups: Part, tight: bool, count: int = 20) -> Part:
    block = draw.choice((16, 32, 64))
    return {
        "block_size": block,
        "max_num_batched_tokens": draw.choice((64, 256, 256, 512, 1024)),
        "long_prefill_token_threshold": draw.choice((0, 0, 100, 128)),
        "requests": load(draw, count, shared=0.7),
        "num_blocks": None if tight else ENOUGH,
        "ext": groups,
    }


def _states(draw: Draw, tight: bool, inside: bool = False) -> Part:
    more = {"internal_checkpoints": True} if inside else {}
    return _hybrid(draw, {"mamba_groups": draw.randint(1, 3), "align_chunks": True} | more, tight)


def _windows(draw: Draw, tight: bool) -> Part:
    windows = draw.choice(([128], [33], [64, 64], [256], [48, 200]))
    return _hybrid(draw, {"full_groups": draw.choice((1, 1, 2)), "windows": windows}, tight)


def _mixed(draw: Draw, tight: bool, inside: bool = False) -> Part:
    more = {"internal_checkpoints": True} if inside else {}
    groups = {"mamba_groups": draw.randint(1, 2), "windows": [draw.choice((64, 128))], "align_chunks": True}
    return _hybrid(draw, groups | more, tight)


def _retention(draw: Draw) -> Part:
    part = draw.choice((_states, _windows, _mixed))(draw, draw.random() < 0.5)
    return part | {"ext": part["ext"] | {"retention": part["block_size"] * draw.choice((1, 2, 4))}}


def _flag(draw: Draw, ext: Part, count: int, **settings: Any) -> Part:
    tokens = load(draw, count, prompts=(20, 1500), spacing=0.5)
    return {"enable_prefix_caching": False, "max_num_batched_tokens": 1024, "requests": tokens, "ext": ext} | settings


def _burst(draw: Draw, states: int, block: int) -> Part:
    """As Kimi-K3 or Qwen3-Next under many short requests."""
    prompt, output, count = draw.choice((500, 800, 1500, 3000)), draw.choice((60, 100, 200)), draw.choice((80, 160))
    return {
        "max_num_batched_tokens": draw.choice((4096, 8192, 16384)),
        "max_num_seqs": count,
        "block_size": block,
        "num_blocks": (1 + states) * draw.randint(40, count),
        "max_model_len": 32768,
        "stage_time": {"base": 0.02, "per_token": 2e-05},
        "requests": load(draw, count, (prompt, prompt), (output, output), spacing=0.0),
        "ext": {"mamba_groups": states, "align_chunks": True, "internal_checkpoints": draw.random() < 0.5},
    }


def _short(draw: Draw, **how: Any) -> list[Part]:
    return load(draw, draw.randint(9, 16), (8, 140), (20, 70), **how)


def _rising(draw: Draw) -> list[Part]:
    """The longer a request runs, the lower its priority: those at the head of the running list preempt themselves."""
    requests = _short(draw, spacing=4.0)
    return [request | {"priority": len(requests) - number} for number, request in enumerate(requests)]


def _plain(draw: Draw, **settings: Any) -> Part:
    """Full attention only, without `ext`."""
    return {
        "block_size": draw.choice((4, 16, 32)),
        "max_num_batched_tokens": draw.choice((64, 256, 1024)),
        "requests": _short(draw),
        "num_blocks": None,
        "ext": {},
    } | settings


KINDS: Mapping[str, Callable[[Draw], Part]] = {
    "storm": lambda draw: _plain(draw, enable_prefix_caching=draw.random() < 0.5),
    "prefix": lambda draw: _plain(draw, requests=_short(draw, shared=0.8)),
    "threshold": lambda draw: _plain(
        draw, long_prefill_token_threshold=draw.choice((24, 48, 96)), requests=load(draw, 8, (8, 900), spacing=6.0)
    ),
    "priority": lambda draw: _plain(
        draw,
        scheduling_policy="priority",
        enable_prefix_caching=draw.random() < 0.5,
        requests=_short(draw, priorities=(0, 1, 2, 5)),
    ),
    "priority-rising": lambda draw: _plain(draw, scheduling_policy="priority", requests=_rising(draw)),
    "early": lambda draw: _plain(draw, requests=_short(draw, early=0.5), enable_prefix_caching=False),
    "interval": lambda draw: _plain(
        draw,
        prefill_schedule_interval=draw.choice((2, 4, 8, 16)),
        num_blocks=draw.choice((ENOUGH, None)),
        requests=_short(draw, spacing=4.0),
    ),
    "state-tight-align": lambda draw: _states(draw, tight=True),
    "state-loose-align": lambda draw: _states(draw, tight=False),
    "state-tight-inside": lambda draw: _states(draw, tight=True, inside=True),
    "state-loose-inside": lambda draw: _states(draw, tight=False, inside=True),
    "window-tight-cached": lambda draw: _windows(draw, tight=True),
    "window-loose-cached": lambda draw: _windows(draw, tight=False),
    "mixed-tight": lambda draw: _mixed(draw, tight=True),
    "mixed-tight-inside": lambda draw: _mixed(draw, tight=True, inside=True),
    "retention": _retention,
    "active": lambda draw: _flag(draw, {"max_num_active_seqs": draw.randint(2, 12)}, 20),
    "adaptive": lambda draw: _flag(
        draw, {"adaptive": True}, 12, long_prefill_token_threshold=draw.choice((32, 64, 200))
    ),
    "scheduled": lambda draw: _flag(draw, {"max_num_scheduled_tokens": draw.choice((128, 256, 700))}, 14),
    "whole": lambda draw: _flag(
        draw, {"enable_chunked_prefill": False}, 16, max_num_batched_tokens=1600, num_blocks=None
    ),
    "noreserve": lambda draw: _flag(draw, {"reserve_full_isl": False}, 16, max_num_batched_tokens=256, num_blocks=None),
    "answers": lambda draw: {
        "num_blocks": 4000,
        "requests": conversations(draw, 4, 4),
        "ext": {"answers_shared": True},
    },
    "burst-k3": lambda draw: _burst(draw, 3, draw.choice((1824, 2944))),
    "burst-qwen3-next": lambda draw: _burst(draw, 3, draw.choice((544, 1056))),
}


def scenario(kind: str, number: int, regime: str) -> Part:
    """The settings and requests of one scenario.

    Args:
        kind: one of `KINDS`.
        number: seeds what is drawn; the same in every regime.
        regime: one of `REGIMES`.
    """
    draw = random.Random(f"{kind} {number}")
    pp = draw.choice((2, 3, 4, 4, 8))
    part = KINDS[kind](draw)
    requests = part["requests"]
    record = {
        "name": f"{kind}-{number}",
        "desc": kind.replace("-", " "),
        "regime": regime,
        "pp": pp,
        "async_scheduling": regime in ("R1", "R3"),
        "queue_slots": queue_slots(regime, pp),
        "max_num_batched_tokens": 256,
        "max_num_seqs": 32,
        "block_size": 16,
        "num_blocks": ENOUGH,
        "long_prefill_token_threshold": 0,
        "max_model_len": max(each["prompt_tokens"] + each["output_tokens"] for each in requests) + 500,
        "enable_prefix_caching": True,
        "scheduling_policy": "fcfs",
        "prefill_schedule_interval": 1,
        "watermark": 0.0,
        "stage_time": {"base": 1.0, "per_token": draw.choice((0.0, 0.001))},
    } | part
    uneven = [round(draw.uniform(0.6, 1.5), 2) for _ in range(pp)]
    record["stage_time"]["scale"] = draw.choice(([1.0] * pp, uneven))
    if record["num_blocks"] is None:
        record["num_blocks"] = _tight(draw, record)
    ext = record.pop("ext")
    if ext:
        record["ext"] = ext | {"group": kind}
    return record
