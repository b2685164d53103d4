"""What a search space and a runner share: from bytes or a mapping to a checked model that remembers its lines.

Decision: one way in. YAML, the command line without YAML and the spec stored with a study all become a Document and
pass the same model, so none can admit what another refuses. The lines live beside the fields, not in them: two equal
specs resolve to the same JSON wherever they were written.
"""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import PrivateAttr, ValidationError

from partitune.errors import SpecError, did_you_mean
from partitune.spec.catalog import Kind, YamlText
from partitune.spec.yaml.document import Document, from_memory, read_yaml
from partitune.spec.yaml.faults import Fault, KeyPath, complaint, describe
from partitune.spec.yaml.strict_model import Reading, StrictModel, allowed

Name = Annotated[
    str, allowed("a name of a-z, 0-9, '.', '_' and '-', at most 64 characters", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
]


class SpecFile(StrictModel):
    """One file a person wrote."""

    file_kind: ClassVar[Kind]

    kind: str
    name: Name
    description: Annotated[str, allowed("text", max_length=4000)] = ""

    _source: str = PrivateAttr(default="")
    _lines: Mapping[KeyPath, int] = PrivateAttr(default_factory=dict)
    _folder: Path | None = PrivateAttr(default=None)

    @classmethod
    def from_yaml(cls, text: YamlText) -> Self:
        """Read a file that `catalog.find` found.

        Raises:
            SpecError: every fault of the file, one a line: `file:line: key: what was found; what is allowed`.
        """
        return cls._read(read_yaml(text.content, text.source), text.folder)

    @classmethod
    def from_mapping(
        cls, value: Mapping[str, object], source: str = "command line", folder: Path | None = None
    ) -> Self:
        """Read values that never were YAML: of the command line, or `resolved()` of a stored study.

        Args:
            value: keys as in the YAML; `kind` may be left out.
            source: what messages call it in place of `file:line`.
            folder: what relative paths in it start from; the current folder if None.

        Raises:
            SpecError: every fault, one a line: `source: key: what was found; what is allowed`.
        """
        with_kind = {"kind": cls.file_kind.value, **value} if isinstance(value, Mapping) else value
        return cls._read(from_memory(with_kind, source), folder)

    @classmethod
    def _read(cls, document: Document, folder: Path | None) -> Self:
        kind = document.value.get("kind")
        if kind != cls.file_kind.value:
            raise complaint(document.source, document.lines, [*document.faults, cls._kind_fault(document)])
        reading = Reading(document)
        spec: Self | None = None
        faults = list(document.faults)
        try:
            spec = cls.model_validate(document.value, context=reading)
        except ValidationError as error:
            at_fault = {fault.path for fault in faults}
            faults += [fault for fault in reading.faults_of(error) if fault.path not in at_fault]
        faults += cls.cross_faults(reading)
        if spec is None or faults:
            raise complaint(document.source, document.lines, faults)
        spec._source, spec._lines, spec._folder = document.source, document.lines, folder
        return spec

    @classmethod
    def _kind_fault(cls, document: Document) -> Fault:
        kind = document.value.get("kind")
        if isinstance(kind, str) and kind in set(Kind):
            wanted = f"{cls.file_kind.value}, as a {cls.file_kind.words} is wanted"
            return Fault(("kind",), f"found a {Kind(kind).words}; allowed: {wanted}")
        if "kind" not in document.value:
            return Fault(("kind",), f"missing; allowed: {cls.file_kind.value}")
        hint = did_you_mean(str(kind), Kind)
        return Fault(("kind",), f"found {describe(kind)}{hint}; allowed: {cls.file_kind.value}")

    @classmethod
    def cross_faults(cls, reading: Reading) -> Iterable[Fault]:  # noqa: ARG003 - subclasses use it
        """Faults between sections; asked also when other sections are wrong. Paths start at the top of the file."""
        return ()

    def error(self, *path: str | int, text: str) -> SpecError:
        """The error to raise when a later check finds a key wrong; `text` is `what was found; what is allowed`."""
        return complaint(self._source, self._lines, [Fault(path, text)])

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as plain JSON; `from_mapping` reads it back. Paths are absolute."""
        return self.model_dump(mode="json", exclude_none=True)

    def absolute(self, path: str) -> Path:
        """A path of this file, which starts from the file's folder, as one that holds anywhere."""
        # Not Path's own methods: expanduser raises on ~nobody, resolve on a loop of links.
        return Path(os.path.abspath((self._folder or Path()) / os.path.expanduser(path)))  # noqa: PTH100, PTH111
