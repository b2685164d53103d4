"""The best trial of every layout a study tried, and whether a pipeline was worth it.

Decision: by the first objective, which names the winner, and from the trials alone, so that simulated and measured
studies are read alike. Differences inside the comparison's indifference zone are called none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from partitune.analysis.comparison import INDIFFERENCE_ZONE
from partitune.analysis.figures import figure
from partitune.candidate import Objective, Outcome, Result
from partitune.hardware.parallelism import Layout, layout_named


def layouts_tried(trials: Iterable[tuple[int, Result]], objective: Objective) -> Iterator[str]:
    """Sentences about trials, each given by number and result; none where they have one layout."""
    best: dict[str, tuple[float, int]] = {}
    for number, result in trials:
        name, value = result.candidate.layout, result.metric(objective.metric)
        if name is None or value is None or result.outcome is not Outcome.OK:
            continue
        if name not in best or objective.cost(value) < objective.cost(best[name][0]):
            best[name] = (value, number)
    if len(best) < 2:
        return
    ranked = sorted(best.items(), key=lambda item: objective.cost(item[1][0]))
    listed = [f"{name} {figure(value, objective.metric)} (trial {number})" for name, (value, number) in ranked]
    yield f"best {objective.metric} of each layout: {', '.join(listed)}"
    stages = {name: layout_named(name, Layout()).pp for name in best}
    flat = next((item for item in ranked if stages[item[0]] == 1), None)
    piped = next((item for item in ranked if stages[item[0]] > 1), None)
    if flat is None or piped is None:
        return
    gain = piped[1][0] / flat[1][0] - 1
    better = objective.cost(piped[1][0]) < objective.cost(flat[1][0])
    if abs(gain) <= INDIFFERENCE_ZONE:
        yield f"pipeline: no difference between {piped[0]} and {flat[0]}, which has none"
    elif better:
        yield f"pipeline: worth it, {piped[0]} is {100 * abs(gain):.0f} % better than {flat[0]}, which has none"
    else:
        yield f"pipeline: the wrong tool here, {flat[0]} has none and {piped[0]} is {100 * abs(gain):.0f} % worse"
