"""What a load takes under given flags, in closed form: good enough to say which flags to try first.

Decision: the steps of load.py, each with the time the pipeline needs for all of them. Prompts pass in single file, so n
steps take sum + (n - 1) slowest. Decodes go round: m groups in flight pass on min(m / sum, 1 / slowest) steps a second
(operational analysis of a closed pipeline; exact for constant times, no host and tokens that come back at once). Over
the shipped spaces this is 2 to 30 % above the simulator, and orders flags nearly as it does, a hundred times faster.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from partitune.candidate import Candidate, FlagValue
from partitune.errors import InfeasibleSpace, OutOfMemory
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.domains import Domain, WholeRange, domain_allows

#: Settings of the flags that are compared; each takes about a millisecond.
_COMPARED = 500
#: Values of a range that are.
_OF_A_RANGE = 5


def throughput_bound(stage_s: Sequence[float], in_flight: float) -> float:
    """Batches a second that stages of these constant times pass on with m batches in flight: min(m / sum, 1 / max)."""
    return min(in_flight / sum(stage_s), 1 / max(stage_s))


def predicted_output_tok_s(problem: Problem, partition: Sequence[int], flags: Mapping[str, FlagValue]) -> float:
    """Output tokens a second of the whole deployment, were there no host.

    As many requests run as the KV cache holds; of a partition that does not fit, as many as the flags allow.

    Raises:
        SpecError: the engine refuses the combination of flags.
    """
    if len(problem.parts) > 1:
        rates = [predicted_output_tok_s(part, partition, flags) for part in problem.parts]
        return problem.mix.figure("output_throughput_tok_s", rates)
    load, flow = problem.rank_load, problem.engine.flow(problem.start(flags))
    # Requests of mean length, half written.
    context = sum(request.prompt_tokens + request.output_tokens / 2 for request in load.requests) / len(load.requests)
    with suppress(InfeasibleSpace, OutOfMemory):
        fit = int(ResolvedCandidate(problem, Candidate(tuple(partition), flags)).kv_cache.tokens / context)
        flow = replace(flow, max_requests=max(1, min(flow.max_requests, fit)))
    in_flight, costs, seconds = load.cohorts(flow), problem.served(flags).costs.stage_costs(partition), 0.0
    for batch, count in load.typical_batches(flow):
        handed = (0.0, *costs.transfer_s(batch.tokens), 0.0)
        stage_s = [
            handed[stage] + computing + handed[stage + 1] for stage, computing in enumerate(costs.compute_s(batch))
        ]
        if batch.prefill_tokens:
            seconds += sum(stage_s) + max(count - 1, 0) * max(stage_s)
        else:
            seconds += count / throughput_bound(stage_s, in_flight)
    share = len(load.requests) / len(problem.load.requests)
    return load.output_tokens / seconds / share


def fastest_first(
    problem: Problem, flags: Mapping[str, Domain], start: Mapping[str, FlagValue]
) -> list[dict[str, FlagValue]]:
    """Settings of `flags` that the engine takes, by predicted throughput under its own split.

    Of equals the one less changed from `start` comes first. Of a range, and of very many settings, some are looked at.
    """
    taken = [setting for setting in _settings(flags, start) if not problem.engine.check(problem.start(setting))]
    return sorted(taken, key=lambda setting: -predicted_output_tok_s(problem, problem.default_partition, setting))


def _settings(flags: Mapping[str, Domain], start: Mapping[str, FlagValue]) -> Iterator[dict[str, FlagValue]]:
    """Counts through the settings, the first flags fastest, each from its starting value where it can take that."""
    choices: dict[str, list[FlagValue]] = {}
    for name, domain in flags.items():
        if name in start:
            first = (start[name],) if domain_allows(domain, start[name]) else ()
            choices[name] = list(dict.fromkeys((*first, *_some_of(domain))))
    every = math.prod(map(len, choices.values()))
    draw = random.Random(0)  # noqa: S311 - a sample, not a secret
    for number in range(every) if every <= _COMPARED else (0, *draw.sample(range(1, every), _COMPARED - 1)):
        setting, left = dict(start), number
        for name, values in choices.items():
            left, place = divmod(left, len(values))
            setting[name] = values[place]
        yield setting


def _some_of(domain: Domain) -> Sequence[FlagValue]:
    if isinstance(domain, tuple):
        return domain
    span, parts = domain.high - domain.low, _OF_A_RANGE - 1
    step = domain.step or (1 if isinstance(domain, WholeRange) else span / parts)
    steps = round(span / step)
    return [domain.low + step * round(steps * part / parts) for part in range(_OF_A_RANGE)]
