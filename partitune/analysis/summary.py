"""What a study found, as plain values: the same for the terminal, for `--json` and for the export.

Decision: one function takes the finished trials and answers everything (counts, the default, the best, the front, the
verdict), so that no two commands can disagree on which trial wins. It takes them as values: where they are kept is
nothing to it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from partitune.analysis.comparison import NO_DIFFERENCE, Comparison, choose, compare, layouts_tried, nearest_miss
from partitune.analysis.fidelity import Fidelity, fidelity
from partitune.analysis.final import DecisionRules, FinalRun, measured_value
from partitune.analysis.judgement import Judgement, fails_more, judge, line_up
from partitune.analysis.pareto import front, hypervolume, knee
from partitune.analysis.references import compared_text, default_partition_at, engine_default_name
from partitune.analysis.trial import Trial
from partitune.candidate import Caveats, Objective, Outcome, Result
from partitune.errors import SpecError, printable

if TYPE_CHECKING:  # it imports the simulator
    from partitune.analysis.advice import Advice
    from partitune.analysis.limits import Distance, PartDistances

#: What every row begins with.
_COLUMNS = ("trial", "on_front", "origin", "outcome", "reason", "partition")


@dataclass(frozen=True, slots=True)
class Summary:
    """A study's trials with the answers drawn from them."""

    study: str
    database: str
    objectives: tuple[Objective, ...]
    trials: tuple[Trial, ...]  # those named below with their stages, the others without
    default: Trial | None  # the engine's own split with its own flags, whatever became of it
    best: Trial | None  # the trial to deploy; the default where nothing beats it
    why: str
    comparison: Comparison | None  # of the best with the default
    pareto: tuple[Trial, ...]
    set_aside: tuple[int, ...]  # numbers of trials measured under an earlier spec: they do not compete
    zone: float  # relative difference below which two count as equal
    final: Judgement | None  # None: there was none, and none is due
    fidelity: Fidelity | None  # of the simulator; None: nothing was screened
    caveats: Caveats  # of what was simulated
    distance: Distance | PartDistances | None = None  # of the best to the limit, simulated; None: not asked
    advice: Advice | None = None  # what the simulator says would make the best better; None: not asked

    @property
    def best_is_default(self) -> bool:
        """True when the engine's default is the deployment to keep."""
        return self.best is not None and self.best is self.default

    @property
    def same_flags(self) -> Trial | None:
        """The trial with the default partition at the flags of the best; None: not tried, or the best is that."""
        return None if self.best is None else default_partition_at(self.best, self.default, self.trials)

    def against_same_flags(self, trial: Trial) -> list[str]:
        """How `trial` stands to the default partition at its own flags, and what partition and flags are worth."""
        same = default_partition_at(trial, self.default, self.trials)
        return compared_text(trial, self.default, same, self.objectives, self.zone)

    def against_default(self, trial: Trial) -> list[str]:
        """How `trial` stands to the engine's default at its starting flags: the verdict where it is the best."""
        if self.default is None or trial.number == self.default.number:
            return []
        comparison = self.comparison if self.best is not None and trial.number == self.best.number else None
        if comparison is None:
            comparison = compare(self.default.result, trial.result, self.objectives, self.zone)
        return [f"against {engine_default_name(self.default)}: {comparison.text}"]

    @property
    def verdict(self) -> str:
        """The fixed words on the best against the default, or on the last finalist; empty without a best."""
        if self.comparison is not None:
            return self.comparison.text
        return NO_DIFFERENCE if self.best_is_default else ""

    @property
    def nearest_miss(self) -> Trial | None:
        """Where no trial kept the limits: the one that missed them by the least."""
        outcomes = [trial.result.outcome for trial in self.trials]
        index = None if Outcome.OK in outcomes else nearest_miss([trial.result for trial in self.trials])
        return None if index is None else self.trials[index]

    def layouts_tried(self) -> Iterator[str]:
        """The best of every layout, in a sentence; none where one layout was tried."""
        return layouts_tried(((trial.number, trial.result) for trial in self.trials), self.objectives[0])

    def notes(self) -> list[str]:
        """What the verdict rests on, in sentences."""
        notes = [] if self.final is None else self.final.lines(self.zone)
        if (miss := self.nearest_miss) is not None:
            notes.append(f"nearest miss: trial {miss.number}, {miss.result.reason}")
        return notes if self.fidelity is None else [*notes, self.fidelity.text]

    @property
    def set_aside_text(self) -> str:
        """What a person must know who misses trials."""
        return f"{len(self.set_aside)} trials measured under an earlier spec of the study are set aside"

    def counts(self) -> dict[str, int]:
        """Trials by outcome, every outcome named."""
        outcomes = [trial.result.outcome for trial in self.trials]
        return {outcome.value: outcomes.count(outcome) for outcome in Outcome}

    def knee(self) -> Trial | None:
        """The trial of the front nearest to the best of all objectives at once; None without a front."""
        index = knee([trial.result for trial in self.trials], self.objectives)
        return None if index is None else self.trials[index]

    def volume(self) -> float | None:
        """Hypervolume of the front over its reference point; None without a front."""
        return hypervolume([trial.result for trial in self.trials], self.objectives) if self.pareto else None

    def trial(self, number: int) -> Trial:
        """One trial by number. Raises SpecError."""
        if (trial := next((trial for trial in self.trials if trial.number == number), None)) is not None:
            return trial
        if number in self.set_aside:
            raise SpecError(
                f"--trial {number}: was measured under an earlier spec of study {self.study} and is set aside; "
                f"partitune show {self.study} --trial {number} shows it"
            )
        last = self.trials[-1].number if self.trials else None
        have = "it has none yet" if last is None else f"it has 0 to {last}"
        raise SpecError(f"--trial {number}: study {self.study} in {self.database} has no such trial; {have}")

    def pareto_json(self) -> dict[str, Any]:
        """The front, its hypervolume, and what did not compete, with reasons."""
        others = [trial for trial in self.trials if trial.result.outcome is not Outcome.OK]
        return {
            "study": self.study,
            "objectives": [asdict(objective) for objective in self.objectives],
            "pareto": [trial_json(trial) for trial in self.pareto],
            "knee": None if (middle := self.knee()) is None else middle.number,
            "hypervolume": self.volume(),
            "not_ok": [trial_json(trial) for trial in others],
            "set_aside": len(self.set_aside),
            **self.caveats.to_json(),
        }

    def to_csv(self) -> str:
        """`rows` as a table with a header; empty where a trial has no such flag or figure."""
        text, rows = io.StringIO(), self.rows()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(rows[0] if rows else _COLUMNS)
        for row in rows:
            cells = ("" if cell is None else int(cell) if name == "on_front" else cell for name, cell in row.items())
            table.writerow([_harmless(cell) for cell in cells])
        return text.getvalue()

    def rows(self) -> list[dict[str, Any]]:
        """Every trial as a flat row, all with the same keys; None where it has no such flag or figure."""
        on_front = {trial.number for trial in self.pareto}
        flags = sorted({name for trial in self.trials for name in trial.result.candidate.settings})
        measured = [trial.result.measurement for trial in self.trials if trial.result.measurement is not None]
        metrics = sorted({name for measurement in measured for name in measurement.metrics})
        rows = []
        for trial in self.trials:
            result, candidate = trial.result, trial.result.candidate
            cells = (trial.number, trial.number in on_front, trial.origin, result.outcome.value, result.reason)
            rows.append(
                dict(zip(_COLUMNS, (*cells, candidate.partition_text), strict=True))
                | {name: candidate.settings.get(name) for name in flags}
                | {name: result.metric(name) for name in metrics}
            )
        return rows

    def to_json(self) -> dict[str, Any]:
        """The object that `search --json` ends with. Keys may be added, never changed."""
        return {
            "study": self.study,
            "db": self.database,
            "trials": self.counts(),
            "set_aside": len(self.set_aside),
            "default": None if self.default is None else trial_json(self.default),
            "best": None if self.best is None else trial_json(self.best),
            "same_flags": None if (same := self.same_flags) is None else trial_json(same),
            "pareto": [trial_json(trial) for trial in self.pareto],
            "why": self.why,
            "distance": None if self.distance is None else self.distance.to_json(),
            **({"advice": None, "advice_tried": None} if self.advice is None else self.advice.to_json()),
            "verdict": self.verdict,
            "final": None if self.final is None else self.final.to_json(self.zone),
            "fidelity": None if self.fidelity is None else asdict(self.fidelity),
            "nearest_miss": None if (miss := self.nearest_miss) is None else trial_json(miss),
            **self.caveats.to_json(),
        }


def summarise(
    study: str,
    database: str,
    trials: Sequence[Trial],
    objectives: Sequence[Objective],
    rules: DecisionRules,
    *,
    runs: Mapping[FinalRun, Result],
    screened: Sequence[Result],
    set_aside: tuple[int, ...],
    caveats: Caveats,
    with_stages: Callable[[Trial], Trial],
) -> Summary:
    """Draw the conclusions of a study; where a final was run, it alone decides.

    Args:
        study: its name.
        database: where it is kept, as a person reads it.
        trials: finished under the spec that it has now, by number; their stages may be missing.
        objectives: the first one names the winner.
        rules: how the study ends in a claim.
        runs: of the final, so far.
        screened: what the simulator said of candidates before a launch.
        set_aside: numbers of the trials of an earlier spec.
        caveats: what its simulated figures leave out.
        with_stages: the same trial with its stages; asked for the few that the summary names.
    """
    trials = list(trials)
    results = [trial.result for trial in trials]
    default = next((i for i, trial in enumerate(trials) if trial.is_default), None)
    failing = fails_more(None if default is None else trials[default].number, runs)
    barred = [index for index, trial in enumerate(trials) if trial.number in failing]
    chosen, why = choose(results, objectives, default, rules.zone, barred, rules.caps)
    lined_up = line_up(trials, objectives[0], rules)
    final = None if lined_up is None else judge(lined_up, runs, objectives, rules.zone)
    if final is not None and final.over:
        chosen = next((index for index, trial in enumerate(trials) if trial.number == final.chosen), None)
        why = final.why
    on_front = front(results, objectives)
    for index in {*on_front, default, chosen}:
        if index is not None:
            trials[index] = with_stages(trials[index])
    best = None if chosen is None else trials[chosen]
    base = None if default is None else trials[default]
    comparison = None if final is None else final.comparison
    if comparison is None and best is not None and best is not base:
        comparison = compare(None if base is None else base.result, best.result, objectives, rules.zone)
    return Summary(
        study=study,
        database=database,
        objectives=tuple(objectives),
        trials=tuple(trials),
        default=base,
        best=best,
        why=why,
        comparison=comparison,
        pareto=tuple(trials[index] for index in on_front),
        set_aside=set_aside,
        zone=rules.zone,
        final=final,
        fidelity=_fidelity(screened, results, objectives[0]),
        caveats=caveats,
    )


def _fidelity(screened: Sequence[Result], results: Sequence[Result], objective: Objective) -> Fidelity | None:
    """How the simulator fared with the launched candidates."""
    predicted = {
        result.candidate.digest: result.metric(objective.metric) for result in screened if result.outcome is Outcome.OK
    }
    pairs = ((predicted.get(result.candidate.digest), measured_value(result, objective)) for result in results)
    return fidelity([(a, b) for a, b in pairs if a is not None and b is not None]) if screened else None


def trial_json(trial: Trial) -> dict[str, Any]:
    """One candidate as the JSON contract has it."""
    result = trial.result
    measured = result.measurement
    return {
        "trial": trial.number,
        **result.candidate.to_json(),
        "metrics": {} if measured is None else dict(measured.metrics),
        "outcome": result.outcome.value,
        "reason": result.reason,
        "origin": trial.origin,
        "simulated": None if measured is None else measured.simulated,
    }


def trial_detail(trial: Trial, summary: Summary) -> dict[str, Any]:
    """One trial with its stages, for `show --trial --json`."""
    measured = trial.result.measurement
    return {
        **trial_json(trial),
        "set_aside": trial.number in summary.set_aside,
        "measurement": None if measured is None else measured.to_json(),
        **summary.caveats.to_json(),
    }


def trial_to_export(summary: Summary, number: int | None) -> Trial:
    """The trial to deploy: the one asked for, else the best.

    Raises:
        SpecError: no such trial, one that did not end ok, or nothing to deploy.
    """
    if number is None:
        if summary.best is None:
            raise SpecError(f"study {summary.study}: nothing to export: {summary.why}")
        return summary.best
    trial = summary.trial(number)
    if trial.result.outcome is not Outcome.OK:
        raise SpecError(
            f"--trial {number}: ended {trial.result.outcome} ({trial.result.reason}); allowed: a trial that ended ok"
        )
    return trial


def remarks(summary: Summary, trial: Trial) -> tuple[str, ...]:
    """What a person who deploys `trial` must know: where it comes from and what its figures rest on."""
    measured = trial.result.measurement
    basis = "simulated, not measured" if measured is not None and measured.simulated else "measured"
    lines = [f"study {summary.study}, trial {trial.number} ({trial.origin}), plan {trial.plan_digest}, {basis}"]
    if trial is summary.default:
        lines.append("this is the engine's default partition with its starting flags")
    if trial is summary.best:
        lines.append(f"why: {summary.why}")
    lines += [*summary.against_same_flags(trial), *summary.against_default(trial)]
    if summary.best_is_default:
        lines.append(f"nothing beats the engine's default: {summary.verdict}")
    if summary.final is not None and not summary.final.over:
        lines += summary.final.lines(summary.zone)
    if summary.set_aside:
        lines.append(summary.set_aside_text)
    return (*lines, *summary.caveats.lines())


def _harmless(cell: object) -> object:
    """A text without control characters; one that a spreadsheet would run as a formula is made text again."""
    if not isinstance(cell, str):
        return cell
    return f"'{printable(cell)}" if cell.startswith(("=", "+", "-", "@")) else printable(cell)
