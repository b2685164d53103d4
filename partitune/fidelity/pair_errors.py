"""How far the ratios of published pairs are off, where constants may be chosen from their source and where not.

Decision: the two parts stand side by side, because an error on what something was fitted to says little. A sign must be
right wherever the source states everything; a size is held to a limit on the held-out part alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from partitune.analysis.figures import percent
from partitune.fidelity.findings import Validation, Verdict, causes
from partitune.fidelity.pairs import Pair, unused_results
from partitune.fidelity.points import Errors

#: The test of record: median error of the ratio over the pairs of held-out sources.
MEDIAN_LIMIT = 0.20
_BAD = 0.15  # a ratio that is further off is explained
_PARTS = {"fit": "constants may be chosen from the source", "held_out": "held out", "": "all"}


def pair_table(pairs: Sequence[Pair]) -> Validation:
    """Who wins, and by how much; which published results no pair uses; the errors of both parts."""
    notes = (*_assumed(pairs), *_off(pairs), _used(pairs), *_errors(pairs))
    return Validation("published pairs: B over A", (), tuple(pairs), notes, _verdict(pairs))


def errors_of(pairs: Iterable[Pair], part: str = "") -> Errors | None:
    """Errors of the ratios of one part, "" for all; None where no pair has one."""
    errors = [pair.error for pair in pairs if part in ("", pair.part) and pair.error is not None]
    return Errors.of(errors) if errors else None


def _assumed(pairs: Iterable[Pair]) -> Iterable[str]:
    stated = {(pair.source, pair.assumed): None for pair in pairs if pair.assumed}
    return (f"assumed for {source}: {assumed}" for source, assumed in stated)


def _off(pairs: Iterable[Pair]) -> Iterable[str]:
    known = {cause["name"]: cause["why"] for cause in causes("pairs")}
    for pair in pairs:
        if not pair.right or (pair.error is not None and abs(pair.error) > _BAD):
            size = "" if pair.error is None else f" ({percent(pair.error, '+.0f')})"
            yield f"off: {pair.name}{size}: {known.get(pair.name) or pair.reason or 'cause unknown'}"


def _used(pairs: Iterable[Pair]) -> str:
    used, unused = {number for pair in pairs for number in pair.results}, unused_results()
    beyond = sum("beyond" in reason for reason in unused.values())
    return (
        f"published results: {len(used)} used by pairs, {beyond} beyond what is simulated, "
        f"{len(unused) - beyond} whose source states too little (published_unused.yaml names each and why)"
    )


def _errors(pairs: Sequence[Pair]) -> Iterable[str]:
    for part, words in _PARTS.items():
        if errors := errors_of(pairs, part):
            yield (
                f"error of the ratio, {words}: {errors.points} pairs, median {percent(errors.median)}, "
                f"p90 {percent(errors.p90)}"
            )


def _verdict(pairs: Sequence[Pair]) -> Verdict:
    stated, others = [pair for pair in pairs if pair.stated], [pair for pair in pairs if not pair.stated]
    right = sum(pair.right for pair in stated)
    text = (
        f"signs right: {right} of {len(stated)} pairs whose configuration is stated in full, "
        f"{sum(pair.right for pair in others)} of {len(others)} others"
    )
    held_out = errors_of(pairs, "held_out")
    if held_out is None:
        return Verdict(text, passed=False)
    limit = percent(MEDIAN_LIMIT, ".0f")
    return Verdict(
        f"{text}; sizes held out: median {percent(held_out.median)} (at most {limit})",
        passed=right == len(stated) and held_out.median <= MEDIAN_LIMIT,
    )
