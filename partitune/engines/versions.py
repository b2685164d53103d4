"""Engine versions: parse one, and say how far our knowledge of it reaches.

Decision: rules are keyed by (major, minor, patch). A release candidate or nightly counts as the release it becomes. A
version outside the range that was read gets the nearest rules and a note, never a refusal: engines appear every week.
Rules and times have ranges of their own: a release is read in a day, and its kernels are measured months later.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from partitune.errors import SpecError

_VERSION = re.compile(
    r"v?(?P<major>\d{1,4})\.(?P<minor>\d{1,4})(?:\.(?P<patch>\d{1,4})(?:\.\d{1,4})?)?"
    r"(?:\.?(?:a|b|rc)\d*)?(?:\.?post\d+)?(?:\.?dev\d*)?(?:\+[a-z0-9.]+)?\Z",
    re.ASCII,
)


class Version(NamedTuple):
    """Release number; compares as a tuple."""

    major: int
    minor: int
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


class VersionRange(NamedTuple):
    """Releases of one engine whose rules were read, or under which times were measured."""

    engine: str
    oldest: Version
    newest: Version

    def notes(self, version: Version) -> tuple[str, ...]:
        """What a reader must know when `version` lies outside the range."""
        if version > self.newest and version[:2] != self.newest[:2]:
            return (f"{self.engine} {version} is newer than the rules known here; those of {self.newest} are used",)
        if version < self.oldest:
            return (f"{self.engine} {version} is older than the rules known here; those of {self.oldest} are used",)
        return ()

    def time_notes(self, version: Version) -> tuple[str, ...]:
        """What a reader must know of times that were measured in this range, when `version` lies outside it."""
        if self.oldest <= version <= self.newest:
            return ()
        measured = f"those of {self.oldest} to {self.newest}"
        return (
            f"no times of {self.engine} {version} were measured: its kernels are taken to be as fast as {measured}",
        )


def parse_version(text: str) -> Version:
    """Release number of `0.33.0`, `0.26.1rc1`, `0.5.5.post3`, `v0.33`, `0.33.0+cu130`.

    Raises:
        SpecError: not a version.
    """
    release = _VERSION.match(text)
    if not release:
        raise SpecError(f"engine.version: {text!r} is not a version; write it like 0.33.0 or 0.26.1rc1")
    return Version(*(int(number or 0) for number in release.group("major", "minor", "patch")))
