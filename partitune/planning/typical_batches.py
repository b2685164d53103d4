"""The batches a load turns into, in closed form: what stages are balanced for before anything is simulated.

Decision: the planner needs to know how much prefill and how much decode a stage will see under given flags, not when.
A burst is cut into steps of at most the token budget; requests whose prompts end in one step decode together for life,
so the number of cohorts, and with it the size of a decode batch, follows from the budget and from what the engine puts
into one batch at most (facts of the schedulers, see engines/*/scheduler).
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.costs.cost_model import Batch
from partitune.engines.scheduling import Flow
from partitune.simulation.request import Request


def typical_batches(
    requests: Sequence[Request], concurrency: int | None, flow: Flow
) -> tuple[tuple[Batch, float], ...]:
    """The prefill step and the decode step of a load, each with how often it comes.

    Args:
        requests: the load.
        concurrency: most requests outstanding; None: as many as the engine admits.
        flow: how the engine cuts the load into batches.
    """
    count = len(requests)
    prompt = sum(request.prompt_tokens for request in requests) / count
    output = sum(request.output_tokens for request in requests) / count
    outstanding, chunk = _first_steps(requests, concurrency, flow)
    prefill_steps = count * prompt / chunk
    finished = max(1, round(count / prefill_steps))  # prompts that end in a step
    found = [(Batch(prefill_tokens=chunk, prefill_pairs=chunk * (prompt + 1) / 2, sampled=finished), prefill_steps)]
    together = max(1, round(outstanding / cohorts(requests, concurrency, flow)))
    if output > 1:
        context = round(together * (prompt + output / 2))
        batch = Batch(decode_tokens=together, decode_context=context, sampled=together)
        found.append((batch, count * (output - 1) / together))
    return tuple(found)


def cohorts(requests: Sequence[Request], concurrency: int | None, flow: Flow) -> int:
    """Groups of requests that decode apart from one another: batches in flight. Arguments as above."""
    outstanding, chunk = _first_steps(requests, concurrency, flow)
    prompt = sum(request.prompt_tokens for request in requests) / len(requests)
    return min(flow.cohorts, outstanding, max(1, round(outstanding * prompt / chunk)))


def _first_steps(requests: Sequence[Request], concurrency: int | None, flow: Flow) -> tuple[int, int]:
    """Requests that are served at once, and prompt tokens of a step."""
    count = len(requests)
    prompt = sum(request.prompt_tokens for request in requests) / count
    outstanding = min(count, flow.max_requests, concurrency or count)
    return outstanding, max(1, round(min(flow.step_tokens, min(outstanding, flow.cohort_requests) * prompt)))
