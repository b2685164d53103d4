"""Which flags change how vLLM puts a load into batches, and what is worth trying in their place.

Decision: only flags that the simulated scheduler heeds, and only values that this load can tell apart: a cap on running
requests above those that are outstanding binds nothing and is not named. Whoever advises tries them; nothing here says
that one helps.

Source: vLLM 0.33.0 `v1/core/sched/scheduler.py` (token_budget, max_num_running_reqs, long_prefill_token_threshold);
releases as in `pipelining`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.scheduling import OtherStart, near_powers
from partitune.engines.vllm.defaults import effective_flags
from partitune.engines.vllm.pipelining import READ, choose_regime

#: Starts of each way to pipeline that people have: the newest release, and the last one that lets the V1 runner
#: schedule ahead with a pipeline.
_STARTS = ((str(READ.newest), "auto"), ("0.30.0", "v1"))


def levers(deployment: Deployment, requests: int, prompt_tokens: int) -> Mapping[str, Sequence[FlagValue]]:
    """Flag -> values other than the start's own, best guess first."""
    flags, stages = effective_flags(deployment), deployment.stages
    asynchronous = choose_regime(deployment).regime.asynchronous
    tokens, seqs = int(flags["max_num_batched_tokens"]), int(flags["max_num_seqs"])
    share = -(-requests * prompt_tokens // stages)
    running = [2 * seqs, requests] if seqs < requests else []
    chunk = min(tokens, prompt_tokens) // 2
    wanted: dict[str, list[FlagValue]] = {
        "async_scheduling": [not asynchronous] if stages > 1 else [],
        "max_num_batched_tokens": [*near_powers(share, 64, 65536, tokens)],
        "max_num_seqs": [*dict.fromkeys((*running, max(min(seqs, requests) // 2, 1)))],
        "long_prefill_token_threshold": [chunk, chunk // 4] if chunk >= 256 else [],
    }
    own = {**flags, "async_scheduling": asynchronous}
    others = {name: [value for value in values if value != own[name]] for name, values in wanted.items()}
    return {name: values for name, values in others.items() if values}


def other_starts(deployment: Deployment) -> Sequence[OtherStart]:
    """One start of every other way to pipeline that the flags of `deployment` could meet."""
    plain = replace(deployment, flags={k: v for k, v in deployment.flags.items() if k != "async_scheduling"})
    met = {choose_regime(plain).regime}
    starts = []
    for version, runner in _STARTS:
        regime = choose_regime(replace(plain, version=version, runner=runner)).regime
        if regime not in met:
            met.add(regime)
            by = f", {runner.upper()} runner" if runner != "auto" else ""
            starts.append(OtherStart(version, runner, f"vLLM {version} ({regime}{by})"))
    return starts
