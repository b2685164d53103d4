"""The batches a load turns into, in closed form: what stages are balanced for before anything is simulated.

Decision: the planner needs to know how much prefill and how much decode a stage will see under given flags, not when.
A burst is cut into steps of at most the token budget; requests whose prompts end in one step decode together for life,
so the number of cohorts, and with it the size of a decode batch, follows from the budget (facts of the scheduler, see
sim/). In regime R1 everything merges into one batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from partitune.costs.interface import Batch
from partitune.engines.regimes import Regime
from partitune.result import Knob
from partitune.sim.inputs import Request


def typical_batches(
    requests: Sequence[Request], concurrency: int | None, stages: int, regime: Regime, settings: Mapping[str, Knob]
) -> tuple[tuple[Batch, float], ...]:
    """The prefill step and the decode step of a load, each with how often it comes.

    Args:
        requests: the load.
        concurrency: most requests outstanding; None: as many as the engine admits.
        stages: pipeline stages.
        regime: decides whether cohorts exist.
        settings: effective flags; `max_num_batched_tokens` and `max_num_seqs` are read.
    """
    count = len(requests)
    prompt = sum(request.prompt_tokens for request in requests) / count
    output = sum(request.output_tokens for request in requests) / count
    outstanding = min(count, int(settings["max_num_seqs"]), concurrency or count)
    chunk = max(1, round(min(int(settings["max_num_batched_tokens"]), outstanding * prompt)))
    prefill_steps = count * prompt / chunk
    finished = max(1, round(count / prefill_steps))  # prompts that end in a step
    found = [(Batch(prefill_tokens=chunk, prefill_pairs=chunk * (prompt + 1) / 2, sampled=finished), prefill_steps)]
    cohorts = 1 if regime is Regime.R1 else min(stages, outstanding, max(1, round(outstanding * prompt / chunk)))
    together = max(1, round(outstanding / cohorts))
    if output > 1:
        context = round(together * (prompt + output / 2))
        batch = Batch(decode_tokens=together, decode_context=context, sampled=together)
        found.append((batch, count * (output - 1) / together))
    return tuple(found)
