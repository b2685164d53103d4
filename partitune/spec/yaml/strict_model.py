"""The base of every section of a YAML file and of the whole: strict, frozen, able to say all that is wrong at once.

Decision: pydantic finds the faults, we word them. A field's `description` states what is allowed, so one sentence
serves the JSON Schema and every message about that field (wrong type, out of range, missing). While reading, each model
is noted beside the mapping it came from: that tells which keys are allowed where an unknown one stands, and lets checks
across sections run on the sections that are sound although others are not.

There is one way in: YAML, the command line without YAML and the spec stored with a study all become a Document and pass
the same model, so none can admit what another refuses. The lines live beside the fields, not in them: two equal specs
resolve to the same JSON wherever they were written.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic.functional_validators import ModelWrapValidatorHandler
from pydantic_core import ErrorDetails, PydanticCustomError

from partitune.errors import SpecError, did_you_mean
from partitune.spec.catalog import Kind, YamlText, find
from partitune.spec.yaml.document import Document, Plain, from_memory, read_yaml
from partitune.spec.yaml.faults import Fault, KeyPath, complaint, describe

_Model = TypeVar("_Model", bound="StrictModel")


def whole(low: int, high: int, meaning: str) -> FieldInfo:
    """Annotation of a whole number within [low, high]."""
    return allowed(f"a whole number from {low} to {high} ({meaning})", ge=low, le=high)


def number(low: float, high: float, meaning: str, *, above: bool = False, below: bool = False) -> FieldInfo:
    """Annotation of a finite number within [low, high]; `above` and `below` exclude that end."""
    ends = {"gt" if above else "ge": low, "lt" if below else "le": high}
    span = f"from {low:g} to {high:g}"
    if above or below:
        span = f"{'more than' if above else 'at least'} {low:g} and {'less than' if below else 'at most'} {high:g}"
    return allowed(f"a number {span} ({meaning})", allow_inf_nan=False, **ends)


def allowed(meaning: str, **limits: Any) -> FieldInfo:
    """Annotation of anything else: `meaning` completes the sentence `allowed: …`; `limits` are those of `Field`."""
    annotation: FieldInfo = Field(description=meaning, **limits)
    return annotation


@dataclass(slots=True)
class Reading:
    """One file being validated: which model read which mapping, by identity (the document outlives the reading)."""

    document: Document
    classes: dict[int, type[StrictModel]] = field(default_factory=dict)
    models: dict[int, StrictModel] = field(default_factory=dict)

    def sound(self, kind: type[_Model], written: Plain) -> _Model | None:
        """The valid `kind` of model read from `written`, a mapping of the document; None when there is none."""
        model = self.models.get(id(written))
        return model if isinstance(model, kind) else None

    def faults_of(self, error: ValidationError) -> list[Fault]:
        """Pydantic's errors in our words, one a key: each member of a union that does not fit has its own."""
        first: dict[KeyPath, Fault] = {}
        for detail in error.errors(include_url=False):
            for fault in self._faults(detail):
                first.setdefault(fault.path, fault)
        return list(first.values())

    def _faults(self, detail: ErrorDetails) -> Iterator[Fault]:
        at: Plain = self.document.value
        path: KeyPath = ()
        model: type[StrictModel] | None = None
        key = ""  # of `model`, on the way to the fault
        for depth, part in enumerate(detail["loc"], start=1):
            if id(at) in self.classes:
                model, key = self.classes[id(at)], str(part)
            if (step := _step(at, part)) is not None:
                path, at = (*path, step[0]), step[1]
            elif detail["type"] == "missing" and depth == len(detail["loc"]):
                path = (*path, part)
            # what is left is pydantic's own: the tag of a union's member, or [key]
        context = detail.get("ctx", {})
        match detail["type"]:
            case "faults":
                yield from (Fault((*path, *fault.path), fault.text) for fault in context["faults"])
            case "refused":
                yield Fault(path, detail["msg"])
            case "extra_forbidden" | "invalid_key":
                keys = list(model.model_fields) if model else []
                yield Fault(path, f"unknown key{did_you_mean(key, keys)}; allowed: {', '.join(keys)}")
            case "too_short" if at:
                pass  # pydantic counts only the sound items; the others have their own fault
            case "missing":
                yield Fault(path, f"missing; allowed: {_description(model, key)}")
            case "union_tag_invalid" if isinstance(at, dict):
                kinds = context["expected_tags"].replace("'", "")
                hint = did_you_mean(str(at["kind"]), kinds.split(", "))
                yield Fault((*path, "kind"), f"found {describe(at['kind'])}{hint}; allowed: {kinds}")
            case "union_tag_not_found" if isinstance(at, dict):
                yield Fault((*path, "kind"), f"missing; allowed: {_description(model, key)}")
            case kind:
                inner = self.classes.get(id(at)) if isinstance(at, dict) else None
                what = _description(model, key) if inner is None else f"a mapping with {', '.join(inner.model_fields)}"
                yield Fault(path, f"found {describe(at)}{_hint(kind, at)}; allowed: {what or detail['msg']}")


def _step(at: Plain, part: str | int) -> tuple[str | int, Plain] | None:
    """The key as written and the value one step down, None where the document has no such step."""
    if isinstance(at, dict):
        written = next((key for key in at if str(key) == str(part)), None)
        return None if written is None else (written, at[written])
    if isinstance(at, list) and isinstance(part, int) and 0 <= part < len(at):
        return part, at[part]
    return None


def _description(model: type[StrictModel] | None, key: str) -> str | None:
    if model is None:
        return None
    known = model.model_fields.get(key)
    return model.other_keys if known is None else known.description


def _hint(error: str, value: Plain) -> str:
    """How to turn what was written into what was probably meant."""
    if isinstance(value, str) and error in {"int_type", "float_type", "bool_type"} and value.strip():
        return " (remove the quotes)" if value.strip().lstrip("+-").replace(".", "", 1).isdecimal() else ""
    if isinstance(value, int | float) and not isinstance(value, bool) and error == "string_type":
        return f' (write it in quotes: "{value}")'
    if isinstance(value, float) and error == "int_type" and value.is_integer() and abs(value) < 1e15:
        return f" (write {int(value)})"
    return ""


class StrictModel(BaseModel):
    """No unknown keys, no conversions (`"16"` is not 16), no changes afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    #: What is allowed under keys that are not fields, for models that take such keys.
    other_keys: ClassVar[str | None] = None

    @classmethod
    def long_form(cls, value: Any) -> Any:
        """The mapping that a shorter way of writing this model stands for; `value` itself where there is none."""
        return value

    def faults(self) -> Iterable[Fault]:
        """What is wrong although every field is right by itself; paths start at this model."""
        return ()

    @model_validator(mode="wrap")
    @classmethod
    def _note(cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        reading = info.context if isinstance(info.context, Reading) and isinstance(value, dict) else None
        if reading is not None:
            reading.classes[id(value)] = cls
        model = handler(cls.long_form(value))
        if faults := tuple(model.faults()):
            raise PydanticCustomError("faults", "inconsistent", {"faults": faults})
        if reading is not None:
            reading.models[id(value)] = model
        return model


def wrong(text: str) -> PydanticCustomError:
    """An error of a field validator whose message is already `found …; allowed: …`."""
    return PydanticCustomError("refused", "{text}", {"text": text})


def refusing(fault: Callable[[Any], str | None]) -> Callable[[Any], Any]:
    """The field validator that takes what `fault` has nothing to say about, and refuses the rest with its words."""

    def check(value: Any) -> Any:
        if text := fault(value):
            raise wrong(text)
        return value

    return check


Name = Annotated[
    str, allowed("a name of a-z, 0-9, '.', '_' and '-', at most 64 characters", pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
]


def _any(schema: Any) -> Any:
    """A range of whole numbers is one of real numbers as well, which `oneOf` would refuse."""
    if isinstance(schema, dict):
        return {"anyOf" if key == "oneOf" else key: _any(part) for key, part in schema.items()}
    return [_any(part) for part in schema] if isinstance(schema, list) else schema


class SpecFile(StrictModel):
    """One file a person wrote."""

    file_kind: ClassVar[Kind]

    kind: str
    name: Name
    description: Annotated[str, allowed("text", max_length=4000)] = ""

    _source: str = PrivateAttr(default="")
    _lines: Mapping[KeyPath, int] = PrivateAttr(default_factory=dict)
    _folder: Path | None = PrivateAttr(default=None)
    _changed: Mapping[KeyPath, str] = PrivateAttr(default_factory=dict)

    @classmethod
    def load(cls, name: str) -> Self:
        """Find and read a file by name or path.

        Raises:
            SpecError: not found, or every fault of the file.
        """
        return cls.from_yaml(find(cls.file_kind, name))

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
    def json_schema(cls) -> dict[str, Any]:
        """The JSON Schema (draft 2020-12) of such a file, for editors that complete and check it while it is typed.

        It is made from the model that reads the file, so it cannot promise what that refuses by name or type; rules
        between keys (a range's ends, sizes that fit together) are only checked on reading.
        """
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            **{key: _any(part) for key, part in cls.model_json_schema().items()},
        }

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
        for changed, by in self._changed.items():
            common = min(len(changed), len(path))
            if changed[:common] == path[:common]:
                return complaint(by, {}, [Fault(path, text)])
        return complaint(self._source, self._lines, [Fault(path, text)])

    def changed_from(self, before: SpecFile, keys: Iterable[KeyPath], by: str) -> Self:
        """These values, of which only those under `keys` are not where `before` has them, but in `by`.

        A later check that finds a key wrong then names the place where a person wrote it.
        """
        self._source, self._lines = before._source, before._lines
        self._changed = {**before._changed, **dict.fromkeys(keys, by)}
        return self

    def resolved(self) -> dict[str, Any]:
        """Every value, defaults included, as plain JSON; `from_mapping` reads it back. Paths are absolute."""
        return self.model_dump(mode="json", exclude_none=True)

    def absolute(self, path: str) -> Path:
        """A path of this file, which starts from the file's folder, as one that holds anywhere."""
        # Not Path's own methods: expanduser raises on ~nobody, resolve on a loop of links.
        return Path(os.path.abspath((self._folder or Path()) / os.path.expanduser(path)))  # noqa: PTH100, PTH111
