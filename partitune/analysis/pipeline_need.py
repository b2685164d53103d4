"""What is said unasked of a candidate with a pipeline: stages that cannot all be busy, and that it needs none.

Decision: whether other layouts are better is for a comparison in which each has its own best flags, so nothing of that
is claimed here. A request decodes on one stage at a time, whatever the engine; chunks of its prompt may be on several.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partitune.candidate import Candidate
from partitune.errors import PartituneError
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate


def stages_that_wait(problem: Problem) -> Iterator[str]:
    """For every load with fewer requests at once than stages: how many of these wait while requests decode."""
    stages = problem.layout.pp
    for load in problem.mix.loads:
        outstanding = load.of_rank(problem.layout.dp).concurrency
        if outstanding is not None and outstanding < stages and any(it.output_tokens > 1 for it in load.requests):
            of_part = f"load {load.name}: " if load.name else ""
            at_once = f"{outstanding} request{'s' * (outstanding > 1)} at once"
            yield f"{of_part}{stages} stages for {at_once}: while they decode, {stages - outstanding} or more wait"


def is_a_pipeline_needed(resolved: ResolvedCandidate) -> Iterator[str]:
    """Where data ranks in place of the stages can serve the load under the same flags: that they can."""
    problem, layout = resolved.problem, resolved.problem.layout
    alone = replace(layout, pp=1, dp=layout.dp * layout.pp, expert_ranks=1)
    try:
        on_it = problem.on(alone.name)
        whole = ResolvedCandidate(on_it, Candidate((on_it.layers,), resolved.candidate.flags, alone.name))
        if whole.violations or not all(stage.fits for stage in whole.memory):
            return
        whole.kv_cache  # noqa: B018 - asked for what it raises
    except PartituneError:
        return
    yield f"{alone.name} can serve this without a pipeline; partitune layouts compares them"
