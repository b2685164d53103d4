"""CPU time of a simulated run, how it grows, and how much faster it is than simulating step by step.

    make bench

Decision: CPU time of this process (`time.process_time`), because the machine may be busy with other things; median and
best of repeated runs in one process. "Warm" means that the stage costs have been asked before, as in a search, where
candidates share a cost model. The plain simulator is the one the tests hold the fast one to, on the same inputs.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import permutations, product

from partitune.candidate import Candidate
from partitune.costs.cost_model import Batch, StageCosts
from partitune.engines.vllm.pipelining import Regime
from partitune.engines.vllm.scheduler.engine_core import simulate
from partitune.engines.vllm.scheduler.settings import VLLM_OVERHEADS, SchedulerSettings, vllm_settings
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.partition import Partition
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.simulation.request import SharedPrefix
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace
from tests import reference_simulator

SPACE = "kimi-k3-pp8-tp2"
STUDY = (16, 256, 32, 16)
LARGE = (128, 4000, 500, 64)
#: CPU milliseconds of one warm run: what the project set itself.
TARGETS = {STUDY: 3.0, LARGE: 20.0}
#: Seconds of CPU spent on one figure, at least, and runs at most.
_SPEND_S, _MOST_RUNS = 0.6, 50

Load = tuple[int, int, int, int]  # requests, prompt tokens, output tokens, concurrency


@dataclass(frozen=True)
class LinearCosts:
    """As cheap as costs can be: what remains is the simulator itself."""

    stages: int

    def compute_s(self, batch: Batch) -> Sequence[float]:
        """The same on every stage."""
        seconds = 2e-3 + 20e-6 * batch.tokens + 1e-9 * (batch.prefill_pairs + batch.decode_context)
        return [seconds] * self.stages

    def transfer_s(self, tokens: int) -> Sequence[float]:
        """The same on every boundary."""
        return [20e-6 + 1e-7 * tokens] * (self.stages - 1)


@dataclass(frozen=True)
class Spent:
    """CPU milliseconds of one thing done again and again."""

    first: float
    median: float
    best: float


def spent(work: Callable[[], object]) -> Spent:
    """The first time apart: it fills what is remembered."""
    times: list[float] = []
    while not times or (len(times) <= _MOST_RUNS and (sum(times) < 1000 * _SPEND_S or len(times) < 6)):
        begin = time.process_time()
        work()
        times.append(1000 * (time.process_time() - begin))
    return Spent(times[0], statistics.median(times[1:]), min(times[1:]))


def once(work: Callable[[], object]) -> float:
    """CPU milliseconds of doing it once."""
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)


def problem_of(load: Load, stages: int = 8) -> Problem:
    """The shipped Kimi-K3 space under another load, or cut into fewer stages."""
    requests, prompt, output, concurrency = load
    keys = {"requests": requests, "prompt_tokens": prompt, "output_tokens": output, "concurrency": concurrency}
    settings = {f"workload.{key}": value for key, value in keys.items()}
    return resolve(with_settings(SearchSpace.load(SPACE), {**settings, "parallel.pp": stages}))


def started(problem: Problem) -> SchedulerSettings:
    """The scheduler the engine comes up with, with its default partition and flags."""
    resolved = ResolvedCandidate(problem, Candidate(problem.default_partition))
    return vllm_settings(resolved.deployment, resolved.kv_cache)


def runner(problem: Problem, settings: SchedulerSettings, costs: StageCosts) -> Callable[[], object]:
    """One simulated run, to be timed."""
    return lambda: simulate(problem.load.requests, settings, costs, VLLM_OVERHEADS, problem.load.concurrency)


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Markdown, so that it can be copied."""
    print(f"\n{title}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}", flush=True)
    for row in rows:
        cells = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in row]
        print(f"| {' | '.join(cells)} |", flush=True)


def runs() -> Iterable[Sequence[object]]:
    """The two loads the project set itself a target for."""
    for name, load in (("16 x 256/32, concurrency 16", STUDY), ("128 x 4000/500, concurrency 64", LARGE)):
        problem = problem_of(load)
        settings = started(problem)
        for kind, costs in (
            ("Kimi-K3", problem.costs.stage_costs(problem.default_partition)),
            ("linear", LinearCosts(problem.stages)),
        ):
            fast = spent(runner(problem, settings, costs))
            plain = once(
                lambda p=problem, s=settings, c=costs: reference_simulator.simulate(  # type: ignore[misc]
                    p.load.requests, s, c, VLLM_OVERHEADS, p.load.concurrency, 32
                )
            )
            yield name, kind, fast.first, fast.median, fast.best, TARGETS[load], plain, f"{plain / fast.median:.0f} x"


def regimes() -> Iterable[Sequence[object]]:
    """What the flags change: small budgets make many mixed batches, which are simulated one by one."""
    problem = problem_of(LARGE)
    settings = started(problem)
    costs = problem.costs.stage_costs(problem.default_partition)
    for regime in Regime:
        row: list[object] = [regime.value]
        for budget in (16384, 4096, 1024):
            chosen = replace(settings, regime=regime, queue_slots=None, max_num_batched_tokens=budget)
            row.append(spent(runner(problem, chosen, costs)).median)
        yield row


def kv_caches() -> Iterable[Sequence[object]]:
    """What KV does: never short, short enough to preempt, and prompts that begin alike in a cache that forgets some."""
    problem = problem_of(LARGE)
    ample = started(problem)
    costs = problem.costs.stage_costs(problem.default_partition)
    load = problem.load.requests
    alike = [replace(each, prefix=(SharedPrefix(str(number % 8), 3000),)) for number, each in enumerate(load)]
    dense = replace(
        ample, full_groups=1, state_groups=0, align_chunks=False, state_export_alignment=None, block_size=16
    )
    windows = replace(dense, windows=(128,), block_size=16)
    for name, settings, tight in (
        ("full and states", ample, 100),
        ("full", dense, 9000),
        ("full and windows", windows, 9500),
    ):
        row: list[object] = [name]
        for requests, blocks in ((load, 200_000), (load, tight), (alike, tight)):
            chosen = replace(settings, num_blocks=blocks)
            run = simulate(requests, chosen, costs, VLLM_OVERHEADS, problem.load.concurrency)
            took = spent(
                lambda r=requests, c=chosen: simulate(r, c, costs, VLLM_OVERHEADS, problem.load.concurrency)  # type: ignore[misc]
            )
            row += [took.median, run.preemptions]
        yield row


def growth() -> Iterable[Sequence[object]]:
    """One thing larger or smaller at a time."""
    requests, prompt, output, concurrency = LARGE
    for count in (32, 128, 512):
        yield "requests", count, _grown(problem_of((count, prompt, output, concurrency)))
    for tokens in (125, 500, 2000):
        yield "output tokens", tokens, _grown(problem_of((requests, prompt, tokens, concurrency)))
    at_eight = started(problem_of(LARGE))
    for stages in (1, 2, 4, 8):
        problem = problem_of(LARGE, stages)
        settings = replace(at_eight, stages=stages, queue_slots=None)
        costs = problem.costs.stage_costs(problem.default_partition)
        yield "stages", stages, spent(runner(problem, settings, costs)).median


def _grown(problem: Problem) -> float:
    costs = problem.costs.stage_costs(problem.default_partition)
    return spent(runner(problem, started(problem), costs)).median


def partitions() -> Iterable[Sequence[object]]:
    """Whole measurements: rules, memory, KV cache, new stage costs, simulation, metrics, table."""
    for name, load, counts in (("study", STUDY, (1, 10, 100)), ("128 x 4000/500", LARGE, (1, 10, 30))):
        problem = problem_of(load)
        driver = SimulatorDriver(problem)
        driver.measure(Candidate(problem.default_partition, {}))
        vectors = _neighbours(problem.default_partition, max(counts))
        for count in counts:
            total = once(lambda v=vectors[:count], d=driver: [d.measure(Candidate(one, {})) for one in v])  # type: ignore[misc]
            yield name, count, total, total / count


def _neighbours(partition: tuple[int, ...], count: int) -> list[tuple[int, ...]]:
    """Distinct partitions: layers moved from one stage to another, at most two away from where they were."""
    moves = list(permutations(range(len(partition)), 2))
    found: dict[tuple[int, ...], None] = {}  # an ordered set
    for first, second in product(moves, moves):
        moved = list(partition)
        for giver, taker in (first, second):
            moved[giver] -= 1
            moved[taker] += 1
        found[tuple(moved)] = None
    return list(found)[:count]


def main() -> None:
    """Print every table."""
    default = problem_of(STUDY).default_partition
    print(
        f"Python {platform.python_version()}, {platform.machine()}; {SPACE}, partition {Partition(default).text}; "
        "CPU milliseconds in one process"
    )
    table(
        "One simulated run (first: nothing remembered yet; plain: step by step, one run)",
        ("load", "stage costs", "first ms", "median ms", "best ms", "target ms", "plain ms", "speed-up"),
        runs(),
    )
    table(
        "128 x 4000/500 by regime and max_num_batched_tokens (median ms)",
        ("regime", "16384", "4096", "1024"),
        regimes(),
    )
    table(
        "128 x 4000/500 by groups of layers: KV never short, short, short and prompts that begin alike (median ms)",
        ("groups", "never short", "preempted", "short", "preempted", "alike", "preempted"),
        kv_caches(),
    )
    table("Growth from 128 x 4000/500, pp 8 (median ms)", ("what", "value", "ms"), growth())
    table("Whole measurements of new partitions", ("load", "partitions", "ms", "ms each"), partitions())
    print(f"\n{time.process_time():.0f} s of CPU in all")


if __name__ == "__main__":
    main()
