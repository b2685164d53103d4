"""One study from start to end: open the database, rebuild what is known, run the loops, say how it ended.

Decision: a study is found by its name and goes on where it stopped; its name is that of the search space unless the
user gives one. The budget and the description may differ; flags, seeds and objectives may when it is asked for. What
changes the meaning of a trial (model, cluster, layout, engine, load, limits, seed, runner) may then as well, and the
trials so far are set aside: they neither teach the sampler nor compete, and count towards no budget. What was in flight
when a process died left no trace in the database and is simply proposed again.

Where candidates are launched, a screen on the simulator comes before the search and a final after it; both are stored
as they go. What the simulator said is part of the study, for it is what the measured figures are held against: every
simulated candidate is stored, also those that were only predicted because another one proposed them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial

from partitune.analysis.figures import figure
from partitune.analysis.final import most_runs
from partitune.analysis.judgement import line_up
from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import DEFAULT_PLAN, Caveats, Origin, Result, Submission
from partitune.errors import SpecError, StoreError
from partitune.execution.choice import choose_driver, choose_pool
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.caveats import refuse_unmodelled_knobs, study_caveats
from partitune.planning.defaults import completed
from partitune.planning.resolve import resolve
from partitune.search.budget import Progress, StoppingRule
from partitune.search.events import Unwatched, Watcher
from partitune.search.hopeless import Hopeless
from partitune.search.loop import search
from partitune.search.proposers.closing import ClosingProposer
from partitune.search.proposers.final import FinalProposer
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.proposer import FirstsProposer, Proposer
from partitune.search.proposers.screened import OPENING, ScreenedProposer
from partitune.search.space import Space
from partitune.search.stored_study import Aim
from partitune.spec.catalog import NAME, SUFFIXES
from partitune.spec.own_file import PRIVATE
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import SpecChanged, Store, StudyState, StudyTerms, check_study_name
from partitune.store.trial_log import log_file, log_trial

#: Keys of a search space that say how long to look, not what a trial means.
MAY_DIFFER = ("budget", "description", "indifference_zone")
#: Keys that say where else to look: finished trials mean the same under another value.
EXTENDS = ("knobs", "seeds", "objectives")


@dataclass(frozen=True, slots=True)
class StudyOrder:
    """What to search, where the results go and where candidates run."""

    spec: SearchSpace
    runner: Runner
    database: str
    study: str
    pool: str = "ray"  # or local
    ray_address: str | None = None
    mode: int = PRIVATE  # of a database that is new
    extend: bool = False  # go on with a study though flags, seeds or objectives changed
    accept_changes: bool = False  # and whatever else changed, without the trials so far

    @property
    def launches(self) -> bool:
        """True where candidates are started, not only simulated."""
        return self.runner.driver != "simulator"


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


@contextmanager
def run(order: StudyOrder, watcher: Watcher) -> Iterator[tuple[Store, Progress]]:
    """Run or resume a study. The context is entered when the result stands, and workers are shut down after it.

    Raises:
        SpecError: the search space, with file and line; StoreError: the database, or the study's name; ClusterError:
            Ray at a given address.
    """
    order = replace(order, spec=completed(order.spec))
    problem = resolve(order.spec)  # all that can be wrong is found here, before anything is written
    driver = choose_driver(problem, order.spec, order.runner)
    space = Space(problem, order.spec)
    if not order.launches:
        refuse_unmodelled_knobs(problem, order.spec)
    if order.pool == "local" and order.ray_address is not None:
        raise SpecError("--ray-address: found beside --pool local; allowed: one of the two")
    check_study_name(order.study)
    pool = choose_pool(driver, order.runner, order.pool, order.ray_address)
    with Store.open(order.database, mode=order.mode) as store, ExitStack() as unless_finished:
        study = _Study(order, store, watcher, study_caveats(problem, order.spec))
        study.enter()
        budget = study.budget()
        unless_finished.callback(store.finish, order.study, StudyState.INTERRUPTED)
        with pool:
            for line in pool.prepare():
                watcher.said(line)
            progress = study.search(space, pool, budget)
            study.close(space, pool, budget, progress)
            if order.launches:  # the simulator says the same again
                study.play_final(pool, budget, progress)
            unless_finished.pop_all()
            store.finish(order.study, StudyState.FINISHED)
            yield store, progress


class _Study:
    """A study that goes on, and how its trials and the runs of its final are recorded."""

    def __init__(self, order: StudyOrder, store: Store, watcher: Watcher, caveats: Caveats) -> None:
        self.order, self.store, self.watcher, self.name = order, store, watcher, order.study
        self.caveats = caveats
        self.aim = Aim.of(order.spec.resolved())
        self.objectives = self.aim.objectives
        self._gpus = order.spec.trial_gpus if order.launches else 0

    def enter(self) -> None:
        """Create the study, or go on with it and say under which changes."""
        spec, order = self.order.spec, self.order
        engine, resolved = spec.engine, spec.resolved()
        how = (order.runner.name, spec.random_seed, self.caveats.to_json())
        terms = StudyTerms(self.name, resolved, engine.name, str(engine.version), *how)
        if self.name not in {study.name for study in self.store.studies()}:
            self.store.create_study(terms)
            return
        try:
            accepted = EXTENDS if order.extend or order.accept_changes else ()
            changes = self.store.resume(terms, may_differ=MAY_DIFFER, accepted=accepted, anew=order.accept_changes)
        except SpecChanged as error:
            if error.keys <= {*EXTENDS}:
                raise StoreError(f"{error}; or extend this one: --extend") from error
            trials = sum(self.store.counts(self.name).values())
            raise StoreError(f"{error}; or go on and set its {trials} trials aside: --accept-changes") from error
        if changes:
            self.watcher.said(f"{self.name} goes on under a changed spec:")
            for change in changes:
                self.watcher.said(f"  {change}")
        if aside := self.store.set_aside(self.name):
            self.watcher.said(f"{len(aside)} trials measured under another spec are kept and set aside")

    def budget(self) -> StoppingRule:
        """When the search ends; says what a person may not expect of it."""
        spec, launches = self.order.spec, self.order.launches
        given, rules = spec.budget, self.aim.rules
        later = most_runs(rules.finalists, rules.pairs) if launches and rules.finalists else 0
        left = max(0, later - len(self.store.repeats(self.name)))
        if given.gpu_hours is not None and not self._gpus:
            self.watcher.said(
                f"simulated trials use no GPU: the budget of {given.gpu_hours:g} GPU-hours does not end this search"
            )
        for line in self.caveats.lines() if given.screen or not launches else ():
            self.watcher.said(line)
        return StoppingRule(given.trials, given.hours, given.gpu_hours, left)

    def search(self, space: Space, pool: Pool, budget: StoppingRule) -> Progress:
        """Go on with the trials, until the budget is spent or nothing is left to try."""
        proposer = self._proposer(space)
        trials = self.store.trials(self.name, stages=False)
        for trial in trials:
            proposer.tell(trial.submission, trial.result)
        self.watcher.resumed([trial.result for trial in trials])
        busy_s = sum(trial.result.duration_s for trial in trials)
        busy_s += sum(repeat.result.duration_s for repeat in self.store.repeats(self.name))
        progress = Progress(finished=len(trials), gpus=self._gpus, gpu_hours=self._gpus * busy_s / 3600)
        self._numbers = itertools.count(self.store.next_number(self.name))
        hopeless = Hopeless(space, log_file(self.order.database, self.name))
        for trial in trials:
            hopeless.tell(trial.submission, trial.result, fresh=False)

        def record(submission: Submission, result: Result) -> int:
            number = self._record(submission, result)
            hopeless.tell(submission, result, fresh=True)
            progress.hopeless = hopeless.reason
            return number

        progress.hopeless = hopeless.reason
        progress.stopped = search(proposer, pool, record, budget, progress, self.watcher)
        return progress

    def close(self, space: Space, pool: Pool, budget: StoppingRule, progress: Progress) -> None:
        """Try what the closing analysis names: a launch counts, and where all is simulated a few trials are added."""
        if progress.hopeless:
            return
        simulated = not self.order.launches
        closing = ClosingProposer(space, self.objectives, self.aim.rules, analysed=simulated)
        for trial in self.store.trials(self.name, stages=False):
            closing.tell(trial.submission, trial.result)
        before, progress.phase = progress.finished, "closing: what the analysis of the best names" * simulated
        search(closing, pool, self._record, StoppingRule(None) if simulated else budget, progress, self.watcher)
        progress.phase = ""
        if added := progress.finished - before:
            progress.stopped += f"; {added} more to close" if simulated else ""

    def _record(self, submission: Submission, result: Result) -> int:
        trial = Trial(self.name, next(self._numbers), submission.label, datetime.now(UTC), result)
        self.store.record(trial)
        log_trial(self.order.database, trial)
        return trial.number

    def _proposer(self, space: Space) -> Proposer:
        """The sampler; where candidates are launched, behind a screen of simulated ones."""
        if not (self.order.launches and self.order.spec.budget.screen):
            return self._sampler(space)
        simulator = SimulatorDriver(space.problem)
        screened = self._screen(space, simulator)
        self.watcher.said(f"{len(screened)} candidates simulated before any is launched")
        opening = (stored.submission for stored in screened if stored.submission.origin in OPENING)
        sampler, objective = self._sampler(space), self.objectives[0]
        return FirstsProposer(opening, ScreenedProposer(sampler, screened, objective, simulator, self._keep))

    def _sampler(self, space: Space) -> FirstsProposer:
        spec = self.order.spec
        optuna = OptunaProposer(space, self.objectives, tuple(spec.slo), spec.random_seed)
        return FirstsProposer(space.first_proposals(), optuna)

    def _screen(self, space: Space, simulator: Driver) -> list[Screened]:
        """Read what is stored of the screen, and simulate what is missing of it now, with a sampler of its own.

        What the space would no longer propose is left out; a seed that is new is simulated whatever the budget says.
        """
        screened: list[Screened] = []
        sampler = self._sampler(space)
        opening = {first.candidate.digest for first in space.first_proposals()}
        for stored in self.store.screened(self.name):
            submission, candidate = stored.submission, stored.result.candidate
            # What a closing found has no plan of the space, and flags of it.
            plan = DEFAULT_PLAN if submission.origin == Origin.CLOSING else submission.plan
            proposable = submission.origin not in OPENING and space.encode(candidate, plan) is not None
            if proposable or candidate.digest in opening:
                sampler.tell(submission, stored.result)
                screened.append(stored)
        new = opening - {stored.result.candidate.digest for stored in screened}
        wanted = max(self.order.spec.budget.screen, len(screened) + len(new))

        def record(submission: Submission, result: Result) -> int:
            screened.append(self._keep(submission, result))
            phase = f"screen, {len(screened)} of {wanted} candidates simulated"
            self.watcher.tick(Progress(where="in process", phase=phase))
            return len(screened)

        with LocalPool(simulator) as pool:
            search(sampler, pool, record, StoppingRule(wanted), Progress(finished=len(screened)), Unwatched())
            closing = ClosingProposer(space, self.objectives, self.aim.rules, analysed=True)
            for stored in screened:
                closing.tell(stored.submission, stored.result)
            search(closing, pool, record, StoppingRule(None), Progress(), Unwatched())
        return screened

    def _keep(self, submission: Submission, result: Result) -> Screened:
        """Store what the simulator says of a candidate; what is stored already stays."""
        screened = Screened(self.name, submission.label, result)
        self.store.record(screened)
        return screened

    def play_final(self, pool: Pool, budget: StoppingRule, progress: Progress) -> None:
        """Run the best trials and the default again, as far as hours and GPU-hours go."""
        trials = self.store.trials(self.name, stages=False)
        final = line_up(trials, self.objectives[0], self.aim.rules)
        if final is None:
            return
        candidates = {trial.number: trial.result.candidate for trial in trials}
        proposer = FinalProposer(final, candidates, progress)
        for repeat in self.store.repeats(self.name):
            proposer.tell(Submission(repeat.result.candidate, repeat=repeat.run.load), repeat.result)
        if proposer.due:
            names = ", ".join(f"trial {number}" for number in final.finalists)
            last = "it" if len(final.finalists) == 1 else "the last of them"
            beside = "" if final.default is None else f", {last} in turns with the default"
            self.watcher.said(f"final: {names} again on fresh servers{beside}")
        record, whole = partial(self._record_run, proposer), StoppingRule(None, budget.hours, budget.gpu_hours)
        ended = search(proposer, pool, record, whole, progress, self.watcher)
        if proposer.due:
            progress.stopped = f"{ended}; the final is not finished"

    def _record_run(self, proposer: FinalProposer, submission: Submission, result: Result) -> int:
        run = proposer.run_of(submission)
        repeat = Repeat(self.name, run.phase, run.repeat, run.trial, datetime.now(UTC), result)
        self.store.record(repeat)
        log_trial(self.order.database, repeat)
        metric = self.objectives[0].metric
        value = result.metric(metric)
        text = result.reason if value is None else f"{metric} {figure(value, metric)}"
        self.watcher.said(f"final, {run.text}: {result.outcome}: {text}")
        return run.trial
