"""What must be said beside every simulated figure: flags that change nothing here, and what nobody has checked.

Decision: caveats are one value, made in one place and stored with a study, because a guess that one command tells and
five do not is believed. A flag that the engine heeds and the model does not is no fault of a search space where it is
fixed: all candidates have it alike, and it is named. As a knob it is: its values would tie, and a search over ties ends
in "no better than the default", which is a verdict about the model and not about the engine.
"""

from __future__ import annotations

from collections.abc import Mapping

from partitune.candidate import Caveats, FlagValue
from partitune.planning.problem import Problem
from partitune.spec.domains import Domain, domain_ends
from partitune.spec.search_space import SearchSpace


def caveats(problem: Problem, flags: Mapping[str, FlagValue]) -> Caveats:
    """Those of one candidate's figures.

    Args:
        problem: on the layout of the candidate.
        flags: over those of the search space.
    """
    gpus = (gpu.doubt for gpu in problem.placement.gpus if gpu.doubt)
    of_loads = (doubt for load in problem.mix.loads for doubt in load.doubts)
    engine, version, start = problem.engine, problem.version, problem.start(flags)
    on_gpus = (engine.model_notes(problem.architecture, gpu, version) for gpu in problem.placement.gpus)
    of_engine = (*engine.notes(version), *(note for notes in on_gpus for note in notes), *engine.assumed(start))
    doubts = (*of_engine, *problem.architecture.doubts, *gpus, *of_loads)
    return Caveats(engine.not_modelled(start), tuple(dict.fromkeys(doubts)))


def study_caveats(problem: Problem, spec: SearchSpace) -> Caveats:
    """Those of a whole study: of what all its candidates share, and of the knobs that the simulator is blind to."""
    shared = caveats(problem, {})
    return Caveats({**shared.not_modelled, **unmodelled_knobs(problem, spec)}, shared.doubts)


def unmodelled_knobs(problem: Problem, spec: SearchSpace) -> dict[str, str]:
    """Knobs with values that change no figure here and may change the engine's: name -> why."""
    reasons = {}
    for name, domain in _domains(spec).items():
        for value in domain if isinstance(domain, tuple) else domain_ends(domain):
            reason = problem.engine.not_modelled(problem.start({name: value})).get(name)
            if reason is not None:
                reasons[name] = reason
    return reasons


def refuse_unmodelled_knobs(problem: Problem, spec: SearchSpace) -> None:
    """Raise SpecError, with its line, for a knob that only a real engine could judge."""
    domains = _domains(spec)
    several = {
        name: why for name, why in unmodelled_knobs(problem, spec).items() if len({*domain_ends(domains[name])}) > 1
    }
    for name, reason in several.items():
        path = ("knobs", "env", name) if name in spec.knobs.env else ("knobs", name)
        fixed = f"engine.{'env' if name in spec.knobs.env else 'flags'}.{name}"
        text = (
            f"the simulator cannot tell its values apart ({reason}); allowed: one value under {fixed}, which is then "
            "named beside every figure, or a runner that launches (--runner)"
        )
        raise spec.error(*path, text=text)


def _domains(spec: SearchSpace) -> Mapping[str, Domain]:
    return {**spec.knobs.flags, **spec.knobs.env}
