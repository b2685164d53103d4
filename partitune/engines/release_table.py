"""A table of what the releases of one engine have, as a command of benchmarks/ wrote it from the releases themselves.

Decision: the first line says which releases were read, because a table of the releases in which something changed does
not say how far it reaches; the lines behind it are CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import resources
from typing import ClassVar

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
