"""From the name a person types to the bytes of a YAML file, and where they came from.

Decision: three places, nearest first: a path; the project folder's own `search_spaces/` or `runners/`; what partitune
ships. A name can never leave those folders (it has no separator), a path may point anywhere. Nothing is parsed here:
what is found is handed on as bytes, never more than one over `MAX_YAML_BYTES`, so that no file can fill the memory.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from partitune.errors import SpecError, did_you_mean

#: Largest YAML file that is read; a space of a hundred seeds has 20 KiB.
MAX_YAML_BYTES = 1 << 20
NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
#: Set inside a Ray job: the folder that mirrors the paths of the files it was shipped with.
SHIPPED_FILES = "PARTITUNE_SHIPPED_FILES"
SUFFIXES = (".yaml", ".yml")


class Kind(StrEnum):
    """The two kinds of file a person writes; the value is what stands under `kind:`."""

    SEARCH_SPACE = "search_space"
    RUNNER = "runner"

    @property
    def folder(self) -> str:
        """Folder that holds this kind, in a project and in the catalog."""
        return {"search_space": "search_spaces", "runner": "runners"}[self.value]

    @property
    def words(self) -> str:
        """The kind as a sentence says it: `search space`."""
        return self.value.replace("_", " ")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file of the catalog: its name, where it lies, and whose it is (`project` or `shipped`)."""

    name: str
    kind: Kind
    origin: str
    file: Traversable

    @property
    def label(self) -> str:
        """The file as messages name it."""
        return str(self.file)


@dataclass(frozen=True, slots=True)
class YamlText:
    """The bytes of one YAML file, unread, and the folder its relative paths start from (None inside an archive)."""

    content: bytes
    source: str
    folder: Path | None


def find(kind: Kind, name: str, *, project: Path = Path()) -> YamlText:
    """The YAML a person means by `name`.

    Args:
        kind: what is wanted.
        name: a path (it has a separator or a YAML suffix, or such a file exists), else a name of the catalog.
        project: folder whose `search_spaces/` and `runners/` are looked at before what is shipped.

    Raises:
        SpecError: nothing of that name, or the file cannot be read.
    """
    if "\0" not in name and _is_path(name):
        return _read(Path(os.path.expanduser(name)), name)  # noqa: PTH111 - Path.expanduser raises on ~nobody
    entries = {entry.name: entry for entry in list_catalog(kind, project=project)}
    if entry := entries.get(name):
        return _read(entry.file, entry.label)
    places = dict.fromkeys(
        str(place.absolute() if isinstance(place, Path) else place) for _, place in _places(kind, project)
    )
    hint = did_you_mean(name, entries)
    raise SpecError(
        f"{kind.words} {name[:100]!r}: not found{hint}; allowed: a path of a YAML file, or one of "
        f"{', '.join(entries) or 'nothing, as the folders are empty'} (looked in {', '.join(places)})"
    )


def list_catalog(kind: Kind, *, project: Path = Path()) -> list[Entry]:
    """Every file of `kind` that a name can mean, sorted by name; the project's hides a shipped one of equal name."""
    entries: dict[str, Entry] = {}
    for origin, place in _places(kind, project):
        try:
            for file in place.iterdir() if place.is_dir() else ():
                stem, dot, suffix = file.name.rpartition(".")
                if dot + suffix in SUFFIXES and NAME.fullmatch(stem) and file.is_file():
                    entries.setdefault(stem, Entry(stem, kind, origin, file))
        except OSError as error:
            raise SpecError(f"{place}: cannot be read: {error.strerror}") from error
    return [entries[name] for name in sorted(entries)]


def readable_path(path: Path) -> Path:
    """Where to read an absolute `path` that a search space names: from what a Ray job was shipped with, else there."""
    folder = os.environ.get(SHIPPED_FILES)
    copy = Path(folder or "", *path.parts[1:])
    return copy if folder and copy.exists() else path


def shipped(kind: Kind) -> Traversable:
    """Folder of the files that partitune ships: inside the wheel, or beside the package in a checkout."""
    package = files("partitune")
    installed = package / "_catalog" / kind.folder
    if installed.is_dir() or not isinstance(package, Path):
        return installed
    return package.parent / kind.folder


def _places(kind: Kind, project: Path) -> tuple[tuple[str, Traversable], tuple[str, Traversable]]:
    return ("project", project / kind.folder), ("shipped", shipped(kind))


def _is_path(name: str) -> bool:
    return "/" in name or os.path.sep in name or name.endswith(SUFFIXES) or os.path.isfile(name)  # noqa: PTH113 - Path.is_file raises on long names


def _read(file: Traversable, source: str) -> YamlText:
    """Read at most one byte more than is allowed; whoever parses says that it is too much."""
    try:
        if file.is_dir():
            raise SpecError(f"{source}: a folder; allowed: a YAML file")
        if not file.is_file():  # also pipes and devices, which could keep us waiting for ever
            raise SpecError(f"{source}: no such file; allowed: a YAML file, or a name that `partitune list` shows")
        with file.open("rb") as stream:
            content = stream.read(MAX_YAML_BYTES + 1)
    except OSError as error:
        raise SpecError(f"{source}: cannot be read: {error.strerror}") from error
    return YamlText(content, source, file.parent if isinstance(file, Path) else None)
