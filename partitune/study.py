"""One study from start to end: open the database, rebuild what is known, run the loop, say how it ended.

Decision: a study is found by its name and goes on where it stopped; its name is that of the search space unless the
user gives one. Everything that changes what a trial means (model, cluster, engine, load, limits, seed) must be the same
as when it began. The budget and the description may differ; knobs, seeds and objectives may when it is asked for. What
was in flight when a process died left no trace in the database and is simply proposed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partitune.drivers.simulator import SimulatorDriver
from partitune.errors import SpecError, StoreError
from partitune.pool import LocalPool, Pool, WarmingPool
from partitune.problem import pose
from partitune.proposer.optuna_proposer import OptunaProposer
from partitune.ray_cluster import reach
from partitune.result import Objective, Result
from partitune.search import Budget, Progress, search
from partitune.space import Proposal, Space
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import SpecChanged, Store, StudyState, check_study_name
from partitune.trial_log import TrialLog

#: Keys of a search space that say how long to look, not what a trial means.
MAY_DIFFER = ("budget", "description")
#: Keys that say where else to look: finished trials mean the same under another value.
EXTENDS = ("knobs", "seeds", "objectives")
Watch = Callable[[Progress, int | None, Proposal | None, Result | None], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What to search, where the results go and where candidates run."""

    spec: SearchSpace
    runner: Runner
    database: str
    study: str
    pool: str = "ray"  # or local
    ray_address: str | None = None
    extend: bool = False  # go on with a study though knobs, seeds or objectives changed


@dataclass(slots=True)
class _Recorder:
    """Gives finished trials their number and commits them."""

    store: Store
    study: str
    next_number: int
    log: TrialLog

    def record(self, result: Result, label: str) -> int:
        """Commit one trial and return its number."""
        number = self.next_number
        self.store.record(self.study, number, result, label)
        self.log.write(number, label, result)
        self.next_number += 1
        return number


def objectives_of(spec: SearchSpace) -> tuple[Objective, ...]:
    """Metric and direction of every objective, the first one naming the winner."""
    return tuple(Objective(one.metric, one.better.value) for one in spec.objectives)


def stored_search(database: str, study: str) -> tuple[SearchSpace, str]:
    """The search space of a stored study, and the name of its runner.

    Raises:
        StoreError: the database, or no such study; the message names those there are.
    """
    with Store.open(database, read_only=True) as store:
        record = store.study(study)
        return SearchSpace.from_mapping(record.spec, source=f"{store.label}: study {study}"), record.runner


def start(plan: Plan) -> tuple[Space, SimulatorDriver]:
    """Look up and check everything of `plan` that can be wrong, before anything is written.

    Raises:
        SpecError: names the file and line; StoreError: the study's name; ClusterError: nothing listens at the address.
    """
    problem = pose(plan.spec)
    driver = SimulatorDriver(problem)
    space = Space(problem, plan.spec)
    if plan.pool == "local" and plan.ray_address is not None:
        raise SpecError("--ray-address: found beside --pool local; allowed: one of the two")
    check_study_name(plan.study)
    reach(plan.ray_address)
    return space, driver


def run(plan: Plan, watch: Watch, finished: Callable[[Store, Progress], None]) -> Progress:
    """Run or resume a study. `finished` is called when the result stands, before workers are shut down.

    Raises:
        SpecError: the search space; StoreError: the database; ClusterError: Ray at a given address.
    """
    space, driver = start(plan)
    objectives = objectives_of(plan.spec)
    proposer = OptunaProposer(space, objectives, tuple(plan.spec.slo), plan.spec.random_seed)
    with Store.open(plan.database) as store:
        stored = _enter(store, plan)
        busy_s = 0.0
        for trial in store.trials(plan.study, stages=False) if stored else ():
            proposer.tell(trial.result, trial.origin)
            stored = max(stored, trial.number + 1)
            busy_s += trial.result.duration_s
        recorder = _Recorder(store, plan.study, stored, TrialLog(plan.database, plan.study))
        budget = Budget(plan.spec.budget.trials, plan.spec.budget.hours, plan.spec.budget.gpu_hours)
        gpus = 0 if plan.runner.driver == "simulator" else plan.spec.parallel.tp * plan.spec.parallel.pp
        state = StudyState.INTERRUPTED
        try:
            with _pool(plan, driver) as pool:
                progress = search(
                    proposer,
                    pool,
                    recorder,
                    budget,
                    already=stored,
                    gpus=gpus,
                    gpu_hours=gpus * busy_s / 3600,
                    watch=watch,
                )
                state = StudyState.FINISHED
                store.finish(plan.study, state)
                finished(store, progress)
        finally:
            if state is StudyState.INTERRUPTED:
                store.finish(plan.study, state)
    return progress


def _enter(store: Store, plan: Plan) -> int:
    """Create the study, or go on with it; the number of trials it has."""
    resolved = plan.spec.resolved()
    if plan.study in {study.name for study in store.studies()}:
        accepted = EXTENDS if plan.extend else ()
        try:
            store.resume(plan.study, resolved, runner=plan.runner.name, may_differ=MAY_DIFFER, accepted=accepted)
        except SpecChanged as error:
            if error.keys <= {*EXTENDS} - {*accepted}:
                raise StoreError(f"{error}; or extend this one: --extend") from error
            raise
        return sum(store.counts(plan.study).values())
    store.create_study(
        plan.study,
        resolved,
        engine=plan.spec.engine.name,
        engine_version=plan.spec.engine.version,
        runner=plan.runner.name,
        random_seed=plan.spec.random_seed,
    )
    return 0


def _pool(plan: Plan, driver: SimulatorDriver) -> Pool:
    if plan.pool == "local":
        return LocalPool(driver)
    slots = plan.runner.workers if isinstance(plan.runner.workers, int) else None
    return WarmingPool(driver, plan.ray_address, slots)
