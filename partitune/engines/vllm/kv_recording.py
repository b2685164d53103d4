"""Holds our KV planning against a recording of the engine's own.

Decision: a recording is read strictly (unknown shapes are errors, never skipped) and replayed through `plan_kv`; the
first field that differs is reported with both values. So "the plan is exact" is something a user can check on the
engine version at hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from partitune.engines.recordings import Agreement
from partitune.engines.vllm.kv_planning import Cache, CacheModel, LayerCache, plan_kv
from partitune.errors import PartituneError, SpecError

_LETTERS = {"f": ("full", Cache.TOKENS), "l": ("linear", Cache.STATE), "w": ("window", Cache.WINDOW)}
_Kind = TypeVar("_Kind")


@dataclass(frozen=True, slots=True)
class KvRecord:
    """One partition put through the engine's planning: what went in and what came out."""

    name: str
    model: CacheModel
    partition: tuple[int, ...]
    free_bytes: tuple[int, ...]
    num_blocks: int
    group_layers: tuple[int, ...]
    groups: int
    tokens: int
    concurrency: float


def read_kv_recording(path: Path) -> tuple[KvRecord, ...]:
    """Records of a JSON file: a list of objects as recorded with vLLM 0.33.0.

    Raises:
        SpecError: unreadable file, or a record that lacks a field or has one of another type.
    """
    try:
        records = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SpecError(f"{path}: not a readable JSON file: {error}") from error
    if not isinstance(records, list) or not records:
        raise SpecError(f"{path}: must be a list of at least one KV record")
    return tuple(_record(f"{path}: record {number}", fields) for number, fields in enumerate(records))


def verify_kv(path: Path) -> list[Agreement]:
    """Replay every record of a file through our planning. Raises SpecError as `read_kv_recording`."""
    return [compare_kv(record) for record in read_kv_recording(path)]


def compare_kv(record: KvRecord) -> Agreement:
    """Replay one record."""
    return Agreement(f"{record.name} {','.join(map(str, record.partition))}", _difference(record))


def _difference(record: KvRecord) -> str | None:
    try:
        plan = plan_kv(record.model, record.partition, record.free_bytes)
    except PartituneError as error:
        return f"the engine planned {record.num_blocks} blocks, we refuse: {error}"
    pairs = (
        ("num_blocks", record.num_blocks, plan.num_blocks),
        ("max_group_layers_per_stage", record.group_layers, plan.group_layers),
        ("num_groups", record.groups, plan.groups),
        ("capacity tokens", record.tokens, plan.tokens),
        ("capacity concurrency", record.concurrency, plan.concurrency),
    )
    for name, engine, ours in pairs:
        if engine != ours:
            return f"{name} is {engine} in the engine and {ours} here"
    return None


def _record(where: str, fields: object) -> KvRecord:
    if not isinstance(fields, Mapping):
        raise SpecError(f"{where}: must be an object")
    pages, blocks = _field(fields, "page_bytes", dict, where), _field(fields, "block_size", dict, where)
    letters = _field(fields, "layer_kinds", str, where)
    window = fields.get("sliding_window")
    unknown = sorted(set(letters) - set(_LETTERS))
    if unknown:
        raise SpecError(f"{where}: layer_kinds has {unknown[0]!r}; known are {', '.join(_LETTERS)}")
    caches = {}
    for letter in set(letters):
        name, kind = _LETTERS[letter]
        page, block = (
            _field(pages, name, int, f"{where}: page_bytes"),
            _field(blocks, name, int, f"{where}: block_size"),
        )
        caches[letter] = LayerCache(
            kind, page, block, _field(fields, "sliding_window", int, where) if letter == "w" else None
        )
    if window is not None and not isinstance(window, int):
        raise SpecError(f"{where}: sliding_window must be an integer or null, not {window!r}")
    capacity = _field(fields, "capacity", list, where)
    if len(capacity) != 2:
        raise SpecError(f"{where}: capacity must be [tokens, concurrency]")
    in_flight = _field(fields, "in_flight_batches", int, where) * _field(fields, "max_num_batched_tokens", int, where)
    return KvRecord(
        name=_field(fields, "model", str, where),
        model=CacheModel(
            tuple(caches[letter] for letter in letters), _field(fields, "max_model_len", int, where), in_flight
        ),
        partition=_integers(fields, "partition", where),
        free_bytes=_integers(fields, "available_bytes_per_stage", where),
        num_blocks=_field(fields, "num_blocks", int, where),
        group_layers=_integers(fields, "max_group_layers_per_stage", where),
        groups=_field(fields, "num_groups", int, where),
        tokens=int(capacity[0]),
        concurrency=float(capacity[1]),
    )


def _field(fields: Mapping[object, object], name: str, kind: type[_Kind], where: str) -> _Kind:
    value = fields.get(name)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise SpecError(f"{where}: {name} must be {kind.__name__}, not {value!r}")
    return value


def _integers(fields: Mapping[object, object], name: str, where: str) -> tuple[int, ...]:
    values = _field(fields, name, list, where)
    if not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        raise SpecError(f"{where}: {name} must be a list of integers")
    return tuple(values)
