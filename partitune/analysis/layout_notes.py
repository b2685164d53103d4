"""What a person should know about a candidate's layout, in sentences.

Decision: said beside every explained candidate and not only when asked, because the commonest mistake is not a wrong
partition but a pipeline where none is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from partitune.costs.memory import MemoryModel, MemorySettings
from partitune.errors import SpecError
from partitune.hardware.parallelism import Exchange
from partitune.planning.problem import Problem
from partitune.planning.resolved_candidate import ResolvedCandidate

_EXCHANGES = {
    Exchange.GATHER: "every GPU gathers the tokens of all data ranks",
    Exchange.ROUTED: "tokens travel to the GPUs of their experts",
}


def layout_notes(resolved: ResolvedCandidate) -> Iterator[str]:
    """Sentences about the layout that a candidate runs on."""
    problem = resolved.problem
    layout = problem.layout
    if layout.dp > 1:
        yield (
            f"{layout.dp} data ranks: the first is simulated with its share of the requests, all are taken to be "
            "alike; rates and KV tokens are those of the whole deployment, KV blocks of stages those of one rank"
        )
    if layout.exchange in _EXCHANGES:
        cut = "cut over the tensor ranks before" if layout.sequence_parallel_moe else "not cut over the tensor ranks"
        yield f"experts: {_EXCHANGES[layout.exchange]}, {cut}; busiest GPU {layout.expert_imbalance:g} x the mean"
    if idle := problem.placement.idle_gpus:
        yield f"{layout.name} leaves {idle} of {layout.gpus + idle} GPUs idle"
    settings = problem.engine.memory_settings(resolved.deployment)
    if note := problem.engine.launch.speculation_note(resolved.deployment.flags):
        counted = "none of it"
        if settings.drafter:
            counted = "its weights on the last stage, and not its KV"
        elif settings.drafter_embedding:
            counted = "the embedding that it reads on the last stage, and not its own weights and KV"
        yield f"{note}. Of the drafter's memory is counted: {counted}"
    if layout.pp > 1:
        yield from _is_a_pipeline_needed(problem, settings)


def _is_a_pipeline_needed(problem: Problem, settings: MemorySettings) -> Iterator[str]:
    layout = problem.layout
    for load in (load.of_rank(layout.dp) for load in problem.mix.loads):
        if load.concurrency is not None and load.concurrency < layout.pp:
            of_part = f"load {load.name}: " if load.name else ""
            yield (
                f"{of_part}{load.concurrency} requests at once are fewer than {layout.pp} stages: some always wait, "
                "and a pipeline cannot help; partitune layouts compares it with others"
            )
    try:
        alone = problem.placed(replace(layout, pp=1, dp=1, expert_ranks=1))
    except SpecError:
        return
    if MemoryModel(problem.architecture, alone, settings).stage(0, 0, problem.layers).fits:
        gpus = "one GPU" if layout.stage_gpus == 1 else f"{layout.tp * layout.pcp} GPUs"
        yield (
            f"the model fits {gpus}: data ranks in place of stages would have no hand-offs and no waiting; partitune "
            "layouts compares them"
        )
