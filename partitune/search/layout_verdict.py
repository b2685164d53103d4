"""By what layouts are ranked, and the sentences that follow from it.

Decision: what a layout is better at depends on the load. Where the client holds a number of requests outstanding, the
first objective of the file decides. Where requests come at their own rate, every layout that keeps up gives as many
tokens as are asked for, and a throughput says nothing: then the limits decide, by the one that is kept with least to
spare, or without limits the time of a whole request. A layout that keeps its limits goes before one that misses one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from partitune.analysis.advice import Rank
from partitune.analysis.comparison import gain
from partitune.analysis.figures import figure, percent
from partitune.analysis.pipeline_need import stages_that_wait
from partitune.candidate import Objective, Outcome, Result
from partitune.hardware.parallelism import Layout
from partitune.planning.problem import Problem

#: Differences below this are not worth a sentence: runs of equal configurations differ by as much.
_INDIFFERENT = 0.03
#: What requests see where they come at their own rate and no limit says what counts.
_OPEN_OBJECTIVE = Objective("e2e_p99_ms", "minimize")

Ran = tuple[Layout, Result]  # a layout that ran, and how


def ranking(problem: Problem) -> tuple[Rank, str]:
    """How results of layouts are put in order, the best first, and by what in words."""
    if _tightest_decides(problem):
        return _rank_by_limits, "the limit that is kept with least to spare, as requests come at their own rate"
    objective = _objective(problem)

    def rank(result: Result) -> tuple[float, ...]:
        value = result.metric(objective.metric)
        return (math.inf,) if value is None else (max(0.0, _tightest(result)), objective.cost(value))

    kept = ", limits kept first" if problem.limits else ""
    return rank, f"{objective.metric}{kept}"


def best_of_both(running: Sequence[Layout]) -> tuple[int | None, int | None]:
    """Of layouts that ran, the best first: which is the best with a pipeline, and which the best without."""
    piped = next((index for index, layout in enumerate(running) if layout.pp > 1), None)
    return piped, next((index for index, layout in enumerate(running) if layout.pp == 1), None)


def verdicts(problem: Problem, running: Sequence[Ran], untried: str = "") -> Iterator[str]:
    """What follows from the layouts that ran, the best first; `untried` is why this may yet change, or empty."""
    if not running:
        yield "no layout can be used, for the reasons that are given"
        return
    piped, flat = (None if index is None else running[index] for index in best_of_both([ran[0] for ran in running]))
    if flat is None or piped is None:
        yield f"{'none' if piped is None else 'every one'} of the layouts that run has a pipeline"
    else:
        compared = _versus(problem, piped, flat)
        yield f"no verdict on pipelines: {untried}; so far {compared.partition(': ')[2]}" if untried else compared
        quickest = min(running, key=lambda ran: ran[1].metric("tpot_p50_ms") or math.inf)
        if quickest not in (piped, flat) and (token_ms := quickest[1].metric("tpot_p50_ms")) is not None:
            yield f"least time per token: {quickest[0].name}, {token_ms:.3g} ms"
    best = running[0][0]
    yield from (f"{best.name}: {note}" for note in stages_that_wait(problem.on(best.name)))
    if note := problem.cluster.idle_note(best):
        yield note


def _versus(problem: Problem, piped: Ran, flat: Ran) -> str:
    """The best layout with a pipeline against the best without."""
    (with_pipeline, with_it), (without, without_it) = ((layout.name, result) for layout, result in (piped, flat))
    times = [result.metric("tpot_p50_ms") for result in (with_it, without_it)]
    token_ms = f" (time per token {times[0]:.3g} ms with the pipeline, {times[1]:.3g} ms without)" if all(times) else ""
    kept = [result.outcome is Outcome.OK for result in (with_it, without_it)]
    if kept[0] != kept[1]:
        keeps, misses = (with_pipeline, without) if kept[0] else (without, with_pipeline)
        reason = (without_it if kept[0] else with_it).reason
        tool = "a pipeline is needed" if kept[0] else "a pipeline is the wrong tool"
        return f"{tool} for these limits: {keeps} keeps them, and {misses} does not ({reason}){token_ms}"
    if _tightest_decides(problem):
        more, what = _tightest(without_it) - _tightest(with_it), "has {} of the limit more to spare than"
    else:
        objective = _objective(problem)
        values = [result.metric(objective.metric) for result in (without_it, with_it)]
        if values[0] is None or values[1] is None or not values[0]:
            return f"no comparison: {with_pipeline} and {without} do not both have {objective.metric}"
        more = gain(objective, values[0], values[1])
        what = f"is {{}} better in {objective.metric} than"
        token_ms += f": {figure(values[1], objective.metric)} with, {figure(values[0], objective.metric)} without"
    if more > _INDIFFERENT:
        return f"a pipeline pays: {with_pipeline} {what.format(percent(more, '.0f'))} {without}{token_ms}"
    if more < -_INDIFFERENT:
        worse = what.replace("better", "worse").replace("more", "less").format(percent(-more, ".0f"))
        return f"a pipeline is the wrong tool for this load: {with_pipeline} {worse} {without}{token_ms}"
    within = f"{with_pipeline} and {without} are within {percent(_INDIFFERENT, '.0f')}{token_ms}; take the one without"
    return f"a pipeline makes no difference: {within}"


def _comes_at_its_own_rate(problem: Problem) -> bool:
    """Whether no part of the load waits for answers, and the first objective is a rate that the clients set."""
    sent = all(
        load.concurrency is None and any(request.arrival_s > 0 for request in load.requests)
        for load in problem.mix.loads
    )
    return sent and problem.objectives[0].metric.endswith(("_tok_s", "_req_s")) and not problem.goodput


def _tightest_decides(problem: Problem) -> bool:
    return bool(problem.limits) and _comes_at_its_own_rate(problem)


def _objective(problem: Problem) -> Objective:
    return _OPEN_OBJECTIVE if _comes_at_its_own_rate(problem) else problem.objectives[0]


def _tightest(result: Result) -> float:
    """How far the limit that is kept with least to spare is missed, as a share of it; below 0 it is kept."""
    return max(() if result.measurement is None else result.measurement.constraints.values(), default=0.0)


def _rank_by_limits(result: Result) -> tuple[float, ...]:
    return (math.inf,) if result.measurement is None else (_tightest(result),)
