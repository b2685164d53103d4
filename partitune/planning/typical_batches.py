"""The batches a load turns into, in closed form: what stages are balanced for before anything is simulated.

Decision: the planner needs to know how much prefill and how much decode a stage will see under given flags, not when.
A burst is cut into steps of at most the token budget; requests whose prompts end in one step decode together for life,
so the number of cohorts, and with it the size of a decode batch, follows from the budget and from what the engine puts
into one batch at most (facts of the schedulers, see engines/*/scheduler).
"""

from __future__ import annotations

from partitune.costs.cost_model import Batch
from partitune.engines.scheduling import Flow
from partitune.planning.workload_mix import Load


def typical_batches(load: Load, flow: Flow) -> tuple[tuple[Batch, float], ...]:
    """The prefill step and the decode step of a load, each with how often it comes.

    Args:
        load: of one data rank; without a limit on those outstanding the engine admits as many as it can.
        flow: how the engine cuts the load into batches.
    """
    count = len(load.requests)
    prompt = load.mean_prompt_tokens
    output = sum(request.output_tokens for request in load.requests) / count
    outstanding, chunk = _first_steps(load, flow)
    prefill_steps = count * prompt / chunk
    finished = max(1, round(count / prefill_steps))  # prompts that end in a step
    prefill = Batch(prefill_tokens=chunk, prefill_pairs=chunk * (prompt + 1) / 2, sampled=finished)
    if output <= 1:
        return ((prefill, prefill_steps),)
    together = max(1, round(outstanding / cohorts(load, flow)))
    context = round(together * (prompt + output / 2))
    decode = Batch(decode_tokens=together, decode_context=context, sampled=together)
    return (prefill, prefill_steps), (decode, count * (output - 1) / together)


def cohorts(load: Load, flow: Flow) -> int:
    """Groups of requests that decode apart from one another: batches in flight. Arguments as above."""
    outstanding, chunk = _first_steps(load, flow)
    return min(flow.cohorts, outstanding, max(1, round(outstanding * load.mean_prompt_tokens / chunk)))


def _first_steps(load: Load, flow: Flow) -> tuple[int, int]:
    """Requests that are served at once, and prompt tokens of a step."""
    count = len(load.requests)
    outstanding = min(count, flow.max_requests, load.concurrency or count)
    together = min(outstanding, flow.cohort_requests)
    return outstanding, max(1, round(min(flow.step_tokens, together * load.mean_prompt_tokens)))
