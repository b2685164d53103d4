"""How engines divide layers when nobody says otherwise.

Decision: rules have names and engines point at a name by version, because the default has changed twice in vLLM and
twice in SGLang, and a comparison with "the default" means nothing unless it says which one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from partitune.errors import InfeasibleSpace, SpecError, did_you_mean

Split = tuple[int, ...]


def all_on_last(layers: int, stages: int) -> Split:
    """The whole remainder on the last stage: vLLM before 0.8 (PR 13839), SGLang up to 0.5.5."""
    base, extra = divmod(layers, stages)
    return (base,) * (stages - 1) + (base + extra,)


def middle_stages(layers: int, stages: int) -> Split:
    """One layer more from the last stage but one backwards: vLLM 0.8 to 0.33 `distributed/utils.py` get_pp_indices."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stages - 1 - extra <= stage < stages - 1) for stage in range(stages))


def remainder_last(layers: int, stages: int) -> Split:
    """One layer more on each of the last stages: SGLang since 0.5.6, vLLM PR 46217 (open)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage >= stages - extra) for stage in range(stages))


def remainder_first(layers: int, stages: int) -> Split:
    """One layer more on each of the first stages: TensorRT-LLM (PR 4399); SGLang main for nine days (PR 13282)."""
    base, extra = divmod(layers, stages)
    return tuple(base + (stage < extra) for stage in range(stages))


#: Names a person may write for a rule.
SPLIT_RULES: Mapping[str, Callable[[int, int], Split]] = {
    "all-on-last": all_on_last,
    "middle-stages": middle_stages,
    "remainder-last": remainder_last,
    "remainder-first": remainder_first,
}


def split(layers: int, stages: int, rule: str) -> Split:
    """Layers per stage by the rule of that name.

    Raises:
        InfeasibleSpace: fewer layers than stages (engines then leave stages empty and crash).
        SpecError: unknown rule.
    """
    if rule not in SPLIT_RULES:
        hint = did_you_mean(rule, SPLIT_RULES)
        raise SpecError(f"split rule {rule!r} is not known{hint}; known are {', '.join(SPLIT_RULES)}")
    if not 1 <= stages <= layers:
        raise InfeasibleSpace(f"{layers} layers cannot be divided over {stages} stages: each needs at least one")
    return SPLIT_RULES[rule](layers, stages)
