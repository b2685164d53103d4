"""What the machinery costs around a trial: Ray, the database, resuming a long study. Nothing is simulated here.

    python -m benchmarks.store_and_pool

Targets on 2 cores: 300 trials/s through Ray and into the database; a study of 10,000 trials opened, resumed and its
front printed in 5 CPU seconds; memory that does not grow with the trials that passed.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from partitune.analysis.trial import Trial
from partitune.candidate import Candidate, FlagValue, Measurement, Origin, Result, StageReport, Submission
from partitune.execution.driver import Driver
from partitune.execution.pools.ray import RayPool
from partitune.planning.resolve import resolve
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Unwatched
from partitune.search.loop import search
from partitune.search.space import Space
from partitune.spec.catalog import Kind, find
from partitune.spec.search_space import SearchSpace
from partitune.store import Store, StudyTerms

ROOT = Path(__file__).parent.parent
SPACE = "kimi-k3-pp8-tp2"
TRIALS = 10_000


@dataclass(frozen=True)
class NoOp(Driver):
    """Answers at once, with as much as the simulator says about 8 stages."""

    def measure(self, candidate: Candidate) -> Measurement:
        """Figures that depend on the candidate, so that there is a front."""
        spread = int(candidate.digest, 16)
        kinds = {"mla+moe": 3, "kda+moe": 9}
        stages = tuple(StageReport(i, 12, kinds, 1.5, 0.2, 0.1, 0.8, 9 << 33, 4 << 33, 3000, 1 << 30) for i in range(8))
        names = ("total_throughput_tok_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms", "tpot_p99_ms", "makespan_s")
        metrics = {name: 1000.0 + index for index, name in enumerate(names)}
        metrics |= {"output_throughput_tok_s": float(spread % 997), "kv_tokens": float(spread % 499)}
        return Measurement(metrics, stages, "async-v2", 3000, 48_000, 2, "stage 2 computes longest", True, {})


class Points:
    """Points of a space one after the other, as a sampler would propose them, and nothing learnt."""

    def __init__(self, space: Space) -> None:
        self._start = dict(space.starting_flags)
        self._partition = list(space.problem.default_partition)
        self._number = 0

    def ask(self) -> Submission:
        """The next one; every one is new."""
        self._number += 1
        partition, left = list(self._partition), self._number
        for stage in range(len(partition) - 1):  # digits of the number shift layers between neighbours
            left, shift = divmod(left, 5)
            partition[stage] += shift - 2
            partition[stage + 1] -= shift - 2
        flags: dict[str, FlagValue] = {**self._start, "max_num_batched_tokens": (512, 1024, 2048)[self._number % 3]}
        return Submission(Candidate(tuple(partition), flags), Origin.SAMPLER, f"front-{self._number % 5}")

    def tell(self, submission: Submission, result: Result) -> None:
        """Learn nothing."""


@dataclass
class Recorder:
    """Records, and remembers how much memory this process had on the way."""

    store: Store
    number: int = 0
    memory_mib: tuple[int, ...] = ()

    def record(self, submission: Submission, result: Result) -> int:
        """Commit one trial."""
        self.store.record(Trial(SPACE, self.number, submission.label, datetime.now(UTC), result))
        self.number += 1
        if self.number in (TRIALS // 10, TRIALS):
            self.memory_mib += (resident_mib(),)
        return self.number - 1


def resident_mib() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") >> 20


def timed(run: Callable[[], object]) -> float:
    """Wall-clock seconds of `run`."""
    start = time.monotonic()
    run()
    return time.monotonic() - start


def through_ray(database: Path) -> None:
    """Fill `database` with trials that cost nothing."""
    spec = SearchSpace.from_yaml(find(Kind.SEARCH_SPACE, SPACE, project=ROOT))
    points = Points(Space(resolve(spec), spec))
    with Store.open(database) as store, RayPool(NoOp()) as pool:
        store.create_study(StudyTerms(SPACE, spec.resolved(), "vllm", "0.33.0", "simulator", 0, None))
        recorder = Recorder(store)
        forget = Recorder(_Nowhere()).record  # type: ignore[arg-type]
        search(Points(Space(resolve(spec), spec)), pool, forget, StoppingRule(500), Progress(), Unwatched())
        bare_s = timed(lambda: search(points, pool, forget, StoppingRule(2000), Progress(), Unwatched()))
        print(f"through Ray ({pool.free_slots} workers):        {2000 / bare_s:6.0f} trials/s")
        points = Points(Space(resolve(spec), spec))
        stored_s = timed(lambda: search(points, pool, recorder.record, StoppingRule(TRIALS), Progress(), Unwatched()))
        print(f"through Ray into the database:  {TRIALS / stored_s:6.0f} trials/s")
    print(f"memory after {TRIALS // 10} and {TRIALS} trials: {' and '.join(map(str, recorder.memory_mib))} MiB")


class _Nowhere:
    def record(self, record: Trial) -> None:
        """Forget it."""


def command(*arguments: str, folder: Path) -> None:
    """Print the CPU seconds of one command over the filled database."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = [sys.executable, "-m", "partitune", *arguments]
    subprocess.run(whole, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True, stdout=subprocess.PIPE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{spent_s:6.2f} CPU s  partitune {' '.join(arguments)}")


def main() -> None:
    """Print every figure."""
    os.environ["PYTHONPATH"] = str(ROOT)  # workers import this module
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        from benchmarks import store_and_pool  # as workers know it, not as __main__

        store_and_pool.through_ray(folder / "results.db")
        print(f"a study of {TRIALS} trials:")
        resume = ("search", "--resume", SPACE, "--pool", "local", "--quiet", "--trials")
        command(*resume, str(TRIALS), folder=folder)
        command(*resume, str(TRIALS + 5), folder=folder)
        for reader in ("pareto", "studies", "status"):
            command(reader, folder=folder)


if __name__ == "__main__":
    main()
