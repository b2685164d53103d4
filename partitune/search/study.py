"""One study from start to end: open the database, rebuild what is known, run the loops, say how it ended.

Decision: a study is found by its name and goes on where it stopped; its name is that of the search space unless the
user gives one. The budget and the description may differ; knobs, seeds and objectives may when it is asked for. What
changes the meaning of a trial (model, cluster, layout, engine, load, limits, seed, runner) may then as well, and the
trials so far are set aside: they neither teach the sampler nor compete, and count towards no budget. What was in flight
when a process died left no trace in the database and is simply proposed again.

Where candidates are launched, a screen on the simulator comes before the search and a final after it; both are stored
as they go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from partitune.analysis.figures import figure
from partitune.analysis.final import Rules, Run, measured_value, most_runs
from partitune.analysis.summary import final_of
from partitune.candidate import Objective, Result
from partitune.engines.speculation import speculation_note
from partitune.errors import SpecError, StoreError
from partitune.execution.drivers import choose_driver
from partitune.execution.pools.choice import choose_pool
from partitune.execution.pools.pools import Pool
from partitune.execution.ray.cluster import reach
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.resolve import resolve
from partitune.search.budget import Budget, Progress
from partitune.search.finals import play
from partitune.search.loop import search
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import Proposer
from partitune.search.proposers.screened import ScreenedProposer
from partitune.search.screens import keep, stored_screen
from partitune.search.space import Proposal, Space
from partitune.spec.catalog import NAME, SUFFIXES
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import SpecChanged, Store, StudyState, check_study_name
from partitune.store.trial_log import TrialLog

#: Keys of a search space that say how long to look, not what a trial means.
MAY_DIFFER = ("budget", "description", "indifference_zone")
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
    accept_changes: bool = False  # and whatever else changed, without the trials so far


@dataclass(slots=True)
class _Recorder:
    """Gives finished trials their number and commits them."""

    store: Store
    study: str
    next_number: int
    log: TrialLog
    metric: str  # of the first objective
    say: Callable[[str], None]

    def record(self, result: Result, label: str) -> int:
        """Commit one trial and return its number."""
        number = self.next_number
        self.store.record(self.study, number, result, label)
        self.log.write(number, label, result)
        self.next_number += 1
        return number

    def record_run(self, run: Run, result: Result) -> None:
        """Commit one run of the final."""
        self.store.record_repeat(self.study, run, result)
        self.log.write(run.trial, f"{run.phase}:{run.repeat}", result)
        value = result.metric(self.metric)
        said = result.reason if value is None else f"{self.metric} {figure(value, self.metric)}"
        self.say(f"final, {run.text}: {result.outcome}: {said}")


def objectives_of(spec: SearchSpace) -> tuple[Objective, ...]:
    """Metric and direction of every objective, the first one naming the winner."""
    return tuple(Objective(one.metric, one.better.value) for one in spec.objectives)


def rules_of(spec: SearchSpace) -> Rules:
    """How the study ends in a claim."""
    return Rules(spec.budget.finalists, spec.budget.pairs, spec.indifference_zone)


def stored_search(database: str, study: str) -> tuple[SearchSpace, str]:
    """The search space of a stored study, and the name of its runner.

    Raises:
        StoreError: the database, or no such study; the message names those there are.
    """
    with Store.open(database, read_only=True) as store:
        record = store.study(study)
        # A runner may name code of its site to run, so a database may not say which file that is.
        if not NAME.fullmatch(record.runner) or record.runner.endswith(SUFFIXES):
            raise StoreError(f"{store.label}: study {study}: its runner {record.runner!r} is not a name; give --runner")
        return SearchSpace.from_mapping(record.spec, source=f"{store.label}: study {study}"), record.runner


def start(plan: Plan) -> tuple[Space, Pool]:
    """Look up and check everything of `plan` that can be wrong, before anything is written.

    Raises:
        SpecError: names the file and line; StoreError: the study's name; ClusterError: nothing listens at the address.
    """
    problem = resolve(plan.spec)
    driver = choose_driver(problem, plan.spec, plan.runner)
    space = Space(problem, plan.spec)
    if plan.pool == "local" and plan.ray_address is not None:
        raise SpecError("--ray-address: found beside --pool local; allowed: one of the two")
    check_study_name(plan.study)
    pool = choose_pool(driver, plan.runner, plan.pool, plan.ray_address)
    reach(plan.ray_address)
    return space, pool


def run(
    plan: Plan,
    watch: Watch,
    finished: Callable[[Store, Progress], None],
    say: Callable[[str], None] = lambda text: None,  # noqa: ARG005
) -> Progress:
    """Run or resume a study. `finished` is called when the result stands, before workers are shut down.

    `say` takes what a person should know before it starts: changes of the spec, a budget that never ends it.

    Raises:
        SpecError: the search space; StoreError: the database; ClusterError: Ray at a given address.
    """
    space, pool = start(plan)
    with Store.open(plan.database) as store:
        _enter(store, plan, say)
        trials, repeats = store.trials(plan.study, stages=False), store.repeats(plan.study)
        busy_s = sum(result.duration_s for result in [one.result for one in trials] + [one.result for one in repeats])
        log, metric = TrialLog(plan.database, plan.study), plan.spec.objectives[0].metric
        recorder = _Recorder(store, plan.study, store.next_number(plan.study), log, metric, say)
        launches, rules, given = plan.runner.driver != "simulator", rules_of(plan.spec), plan.spec.budget
        later = most_runs(rules.finalists, rules.pairs) if launches and rules.finalists else 0
        budget = Budget(given.trials, given.hours, given.gpu_hours, max(0, later - len(repeats)))
        gpus = plan.spec.trial_gpus if launches else 0
        if budget.gpu_hours is not None and not gpus:
            say(f"simulated trials use no GPU: the budget of {budget.gpu_hours:g} GPU-hours does not end this search")
        note = speculation_note({**plan.spec.engine.flags, **plan.spec.knobs.flags})
        if note and (given.screen or not launches):
            say(note)
        state = StudyState.INTERRUPTED
        try:
            with pool:
                for line in pool.prepare():
                    say(line)
                proposer = _proposer(store, plan, space, watch, say)
                for trial in trials:
                    proposer.tell(trial.result, trial.origin)
                progress = search(
                    proposer,
                    pool,
                    recorder,
                    budget,
                    already=len(trials),
                    gpus=gpus,
                    gpu_hours=gpus * busy_s / 3600,
                    watch=watch,
                )
                if launches:  # the simulator says the same again
                    _play_final(store, plan, pool, recorder, budget, progress, watch, say)
                state = StudyState.FINISHED
                store.finish(plan.study, state)
                finished(store, progress)
        finally:
            if state is StudyState.INTERRUPTED:
                store.finish(plan.study, state)
    return progress


def _proposer(store: Store, plan: Plan, space: Space, watch: Watch, say: Callable[[str], None]) -> Proposer:
    """The sampler; where candidates are launched, behind a screen of simulated ones."""
    objectives, count, simulator = objectives_of(plan.spec), plan.spec.budget.screen, SimulatorDriver(space.problem)

    def sampler() -> OptunaProposer:
        return OptunaProposer(space, objectives, tuple(plan.spec.slo), plan.spec.random_seed)

    if plan.runner.driver == "simulator" or not count:
        return sampler()
    progress = Progress(where="in process")

    def look(done: int, of: int) -> None:
        progress.phase = f"screen, {done} of {of} candidates simulated"
        watch(progress, None, None, None)

    screened = stored_screen(store, plan.study, space, sampler(), simulator, count, look)
    say(f"{len(screened)} candidates simulated before any is launched")
    late = partial(keep, store, plan.study)
    return ScreenedProposer(sampler(), screened, objectives[0], simulator, late)


def _play_final(
    store: Store,
    plan: Plan,
    pool: Pool,
    recorder: _Recorder,
    budget: Budget,
    progress: Progress,
    watch: Watch,
    say: Callable[[str], None],
) -> None:
    """Run the best trials and the default again, as far as the budget goes."""
    objective, trials = objectives_of(plan.spec)[0], store.trials(plan.study, stages=False)
    final = final_of(trials, objective, rules_of(plan.spec))
    if final is None:
        return
    done = {one.run: measured_value(one.result, objective) for one in store.repeats(plan.study)}
    if final.standing(done)[1]:
        names = ", ".join(f"trial {number}" for number in final.finalists)
        last = "it" if len(final.finalists) == 1 else "the last of them"
        beside = "" if final.default is None else f", {last} in turns with the default"
        say(f"final: {names} again on fresh servers{beside}")
    candidates = {trial.number: trial.result.candidate for trial in trials}
    play(final, candidates, done, pool, recorder, budget, progress, lambda now: watch(now, None, None, None))


def _enter(store: Store, plan: Plan, say: Callable[[str], None]) -> None:
    """Create the study, or go on with it and say under which changes."""
    resolved = plan.spec.resolved()
    engine = plan.spec.engine
    if plan.study not in {study.name for study in store.studies()}:
        store.create_study(
            plan.study,
            resolved,
            engine=engine.name,
            engine_version=engine.version,
            runner=plan.runner.name,
            random_seed=plan.spec.random_seed,
        )
        return
    try:
        resumed = store.resume(
            plan.study,
            resolved,
            engine=engine.name,
            engine_version=engine.version,
            runner=plan.runner.name,
            random_seed=plan.spec.random_seed,
            may_differ=MAY_DIFFER,
            accepted=EXTENDS if plan.extend or plan.accept_changes else (),
            anew=plan.accept_changes,
        )
    except SpecChanged as error:
        if error.keys <= {*EXTENDS}:
            raise StoreError(f"{error}; or extend this one: --extend") from error
        trials = sum(store.counts(plan.study).values())
        raise StoreError(f"{error}; or go on and set its {trials} trials aside: --accept-changes") from error
    if resumed.changes:
        say(f"{plan.study} goes on under a changed spec:")
        for change in resumed.changes:
            say(f"  {change}")
    if aside := store.set_aside(plan.study):
        say(f"{len(aside)} trials measured under another spec are kept and set aside")
