"""When a search cannot find anything: every start fails alike, or the model fits nowhere.

Decision: what two starts prove is not paid for eight times. A failure counts as alike where its words are the same but
for numbers and paths, and as nobody's knob where it names no flag that varies; an engine's word that it takes no such
argument or model needs one witness beside the default, any other crash one under other flags. Nothing is concluded from
what the infrastructure did, nor from memory and time, which partitions and flags change. A rerun believes what is
stored only as far as one start of its own repeats it, as the site may have been mended meanwhile. That a model fits
nowhere is asked of the planner once the default did not fit, at the ends of every flag.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from partitune.candidate import FlagValue, Origin, Outcome, Result, Submission
from partitune.engines.readout import FailureKind
from partitune.execution.driver import MEMORY_CONSTRAINT, TIME_CONSTRAINT
from partitune.search.space import Space
from partitune.spec.domains import Domain, domain_ends

_NUMBERS_AND_PATHS = re.compile(r"(?:~|\.{0,2})(?:/[\w.+@-]+)+|0x[0-9a-f]+|\d[\d.,:]*")
#: What an engine says of itself, whatever the flags are.
_TURNED_DOWN = (FailureKind.UNSUPPORTED, FailureKind.ARGUMENT)
#: Settings of the flags at which a model may fit; a space has more than these only with many categorical flags.
_SETTINGS = 256


class Hopeless:
    """Told of every trial; says why there is no use in going on."""

    def __init__(self, space: Space, log: Path | None) -> None:
        """`log` is where a person reads more of a failure; None: nowhere."""
        self._space, self._log = space, log
        self._default: Result | None = None
        self._alike = 0
        self._works = False
        self.reason = ""  # empty: there is hope

    def tell(self, submission: Submission, result: Result, *, fresh: bool) -> None:
        """Learn from a trial; `fresh` of this run, and not read back."""
        if submission.origin == Origin.DEFAULT:
            self._default = result
            if result.constraints.get(MEMORY_CONSTRAINT, 0.0) > 0 and not self._fits():
                self.reason = f"the model fits nowhere in this space: {result.reason}"
        self._works |= result.measurement is not None
        if fresh and not self._works and not self.reason and self._is_alike(result):
            log = f"; its log: {self._log}" if self._log else ""
            self.reason = f"every start fails alike, whatever varies: {result.reason}{log}"

    def _is_alike(self, result: Result) -> bool:
        default = self._default
        if default is None or default.candidate == result.candidate:
            return False
        if not (_counts(default) and _counts(result) and _masked(default.reason) == _masked(result.reason)):
            return False
        varying = {name for name, domain in self._space.parameters.items() if not _is_single(domain)}
        words = {word.replace("-", "_").strip("_") for word in re.findall(r"[\w-]+", result.reason)}
        if words & varying:
            return False
        turned_down = result.reason.startswith(tuple(f"{kind} " for kind in _TURNED_DOWN))
        flags_vary = bool(varying & {*result.candidate.flags})
        return turned_down or not flags_vary or result.candidate.settings != default.candidate.settings

    def _fits(self) -> bool:
        """Whether any partition fits at the ends of the flags, on any layout."""
        return any(self._space.fits(setting) for setting in itertools.islice(self._ends(), _SETTINGS))

    def _ends(self) -> Iterator[Mapping[str, FlagValue]]:
        ends = {name: domain_ends(domain) for name, domain in self._space.parameters.items()}
        return (dict(zip(ends, point, strict=True)) for point in itertools.product(*ends.values()))


def _counts(result: Result) -> bool:
    """A failure that no amount explains: of the attempt, or a refusal."""
    graded = any(result.constraints.get(name, 0.0) > 0 for name in (MEMORY_CONSTRAINT, TIME_CONSTRAINT))
    return result.outcome in (Outcome.FAILED, Outcome.INFEASIBLE) and result.measurement is None and not graded


def _is_single(domain: Domain) -> bool:
    return isinstance(domain, tuple) and len(domain) == 1


def _masked(text: str) -> str:
    return _NUMBERS_AND_PATHS.sub("#", text)
