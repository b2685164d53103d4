"""A table of what the releases of one engine have, as a command of benchmarks/ wrote it from the releases themselves.

Decision: the first line says which releases were read, because a table of the releases in which something changed does
not say how far it reaches; the lines behind it are CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import ClassVar, NamedTuple

from partitune.engines.versions import Version, parse_version


class ReleaseTable:
    """One table of one engine; read when it is first asked.

    Args:
        folder: the engine's in this room, which has the table.
        engine: as people write it.
        file: where the engine itself keeps what the table says.
    """

    table: ClassVar[str]  # its file in the folder

    def __init__(self, folder: str, engine: str, file: str) -> None:
        self._folder, self._engine, self._file = folder, engine, file

    @cached_property
    def span(self) -> tuple[Version, Version]:
        """The oldest and the newest release that was read."""
        oldest, _, newest = self._lines[0].removeprefix("# Releases ").partition(" to ")
        return parse_version(oldest), parse_version(newest.split(":")[0])

    @property
    def rows(self) -> Sequence[Mapping[str, str]]:
        """Its rows by the names of its columns."""
        return list(csv.DictReader(self._lines[1:]))

    @cached_property
    def _lines(self) -> Sequence[str]:
        text = resources.files(f"partitune.engines.{self._folder}").joinpath(self.table).read_text("utf-8")
        return text.splitlines()


class Run(NamedTuple):
    """Releases that have something."""

    after: Version | None  # the last known to lack it before them; None: the oldest that was read is one of them
    until: Version | None  # the first known to lack it behind them; None: the newest that was read is one of them

    def holds(self, release: Version) -> bool:
        """Whether `release` may be one of them."""
        return (self.after is None or self.after < release) and (self.until is None or release < self.until)


class PresenceTable(ReleaseTable):
    """Which releases have what is named. Of those between two that were read and differ nobody knows: they have it."""

    column: ClassVar[str]  # of the names

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Name -> the runs of releases that have it, oldest first."""
        runs: dict[str, list[Run]] = {}
        for row in self.rows:
            after, until = (parse_version(row[key]) if row[key] else None for key in ("after", "until"))
            runs.setdefault(row[self.column], []).append(Run(after, until))
        return runs

    def has(self, names: Iterable[str], version: Version) -> bool:
        """Whether a release has one of `names`; older or newer ones than were read are like the nearest of them."""
        oldest, newest = self.span
        return any(run.holds(min(max(version, oldest), newest)) for name in names for run in self.runs.get(name, ()))

    def when(self, names: Iterable[str], version: Version) -> str:
        """Of a release that lacks them, when others have them: `comes after 0.9.2`, or `left by 0.24.0`; else empty."""
        runs = [run for name in names for run in self.runs.get(name, ())]
        if later := [run.after for run in runs if run.after is not None and run.after >= version]:
            return f"comes after {min(later)}"
        earlier = [run.until for run in runs if run.until is not None]
        return f"left by {max(earlier)}" if earlier else ""
