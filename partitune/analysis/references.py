"""What a deployment is held against, in the order in which a person should read it.

Decision: the default partition at the same flags comes first, because that alone says what the partition is worth; the
engine's default, trial 0, comes second, and the difference between the two is what the flags are worth. Each is named
in full wherever it is compared with. They are a sequence: who adds a reference adds it here, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from partitune.analysis.comparison import compare, gain
from partitune.analysis.figures import flags_text, percent
from partitune.analysis.trial import Trial
from partitune.candidate import DEFAULT_PLAN, LAYOUT, Candidate, FlagValue, Objective, Outcome, Result
from partitune.spec.commands import explain_command


@dataclass(frozen=True, slots=True)
class Reference:
    """One deployment that another one is compared with."""

    name: str  # in full, as a sentence calls it
    column: str  # in short, as a table heads it
    result: Result


def references(
    candidate: Candidate, same_flags: Result | None, default: Result | None, starting: Mapping[str, FlagValue]
) -> tuple[Reference, ...]:
    """What `candidate` is compared with, first things first.

    Args:
        candidate: the deployment in question.
        same_flags: how the default partition ended at its flags; None: it is that itself, or that was not tried.
        default: how the engine's default ended; None: it is that itself, or that was not tried.
        starting: the values that the engine's default has of the flags that `candidate` names.
    """
    listed = []
    if same_flags is not None and (default is None or same_flags.candidate != default.candidate):
        partition, flags = same_flags.candidate.partition_text, _in_brackets(candidate.settings)
        name = f"the default partition {partition} at these flags{flags}"
        listed.append(Reference(name, "at these flags", same_flags))
    if default is not None and default.candidate != candidate:
        listed.append(Reference(_engine_default(default.candidate, starting), "default", default))
    return tuple(listed)


def stored_references(trial: Trial, same_flags: Trial | None, default: Trial | None) -> tuple[Reference, ...]:
    """The same of a trial of a study, as far as they were tried."""
    base = None if default is None else default.result
    same = None if same_flags is None else same_flags.result
    starting = {} if base is None else base.candidate.settings
    numbers = {id(other.result): f" (trial {other.number})" for other in (same_flags, default) if other is not None}
    listed = references(trial.result.candidate, same, base, starting)
    return tuple(replace(reference, name=reference.name + numbers[id(reference.result)]) for reference in listed)


def default_partition_at(trial: Trial, default: Trial | None, trials: Iterable[Trial]) -> Trial | None:
    """The trial with the default partition at the flags and on the layout of `trial`; None: not tried, or it is that.

    Args:
        trial: in question.
        default: the engine's default; None: it was not tried.
        trials: of the same spec.
    """
    own, settings = trial.result.candidate, trial.result.candidate.settings
    for other in trials:
        candidate = other.result.candidate
        if candidate.settings == settings and is_default_partition(other, default):
            return None if candidate == own else other
    return None


def is_default_partition(trial: Trial, default: Trial | None) -> bool:
    """Whether `trial` has the partition that the engine would have made on its layout."""
    own, base = trial.result.candidate, None if default is None else default.result.candidate
    same = base is not None and (own.layout, own.partition) == (base.layout, base.partition)
    return same or trial.submission.plan == DEFAULT_PLAN or len(own.partition) == 1


def compared_text(
    trial: Trial, default: Trial | None, same_flags: Trial | None, objectives: Sequence[Objective], zone: float
) -> list[str]:
    """The sentences that hold `trial` against the default partition at its flags, and say what each was worth."""
    if default is not None and trial.number == default.number:
        return []
    candidate = trial.result.candidate
    if same_flags is None:
        if is_default_partition(trial, default):
            moved = default is not None and default.result.candidate.layout != candidate.layout
            by = "layout, whose default partition it has, and its flags" if moved else "flags alone"
            return [f"this is the default partition: it differs from the engine's default by its {by}"]
        command = explain_command(("SPACE",), candidate, candidate.partition)
        return [
            f"the default partition at these flags was not tried: {command} (SPACE: that of the study) simulates it"
        ]
    if default is not None and same_flags.number == default.number:
        return []
    reference = stored_references(trial, same_flags, default)[0]
    comparison = compare(same_flags.result, trial.result, objectives, zone, "that")
    lines = [f"against {reference.name}: {comparison.text}"]
    if default is not None:
        lines += worth(objectives[0], default.result, same_flags.result, trial.result)
    return lines


def worth(objective: Objective, default: Result, same_flags: Result, result: Result) -> list[str]:
    """Which part of the change against the engine's default is the flags', and which the partition's.

    Nothing where one of the three has no figure.
    """
    ended = (default, same_flags, result)
    before, between, after = (one.metric(objective.metric) if one.outcome is Outcome.OK else None for one in ended)
    if before is None or between is None or after is None:
        return []
    laid_out = default.candidate.layout != result.candidate.layout
    flags = f"flags{' and layout' * laid_out} {percent(gain(objective, before, between), '+.1f')}"
    partition = f"then the partition {percent(gain(objective, between, after), '+.1f')}"
    whole = percent(gain(objective, before, after), "+.1f")
    return [f"{objective.metric}: {flags}, {partition}, together {whole} (plus is better)"]


def _engine_default(candidate: Candidate, starting: Mapping[str, FlagValue]) -> str:
    return f"the engine's default {candidate.partition_text} at its starting flags{_in_brackets(starting)}"


def engine_default_name(default: Trial) -> str:
    """The engine's default in full."""
    return _engine_default(default.result.candidate, default.result.candidate.settings)


def _in_brackets(settings: Mapping[str, FlagValue]) -> str:
    text = flags_text({name: value for name, value in settings.items() if name != LAYOUT})
    layout = f"layout {settings[LAYOUT]}" if LAYOUT in settings else ""
    inside = ", ".join(part for part in (text, layout) if part)
    return f" ({inside})" if inside else ""
