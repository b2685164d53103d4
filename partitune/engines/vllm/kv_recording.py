"""Holds our KV planning against a recording of the engine's own.

Decision: a recording is read strictly (unknown shapes are errors, never skipped) and replayed through `plan_kv`; the
first field that differs is reported with both values. So "the plan is exact" is something a user can check on the
engine version at hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, TypeAdapter

from partitune.engines.recordings import Agreement, read_records
from partitune.engines.vllm.kv_planning import Cache, CacheModel, LayerCache, plan_kv
from partitune.errors import PartituneError, SpecError

_LETTERS = {"f": ("full", Cache.TOKENS), "l": ("linear", Cache.STATE), "w": ("window", Cache.WINDOW)}


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


def read_kv_recording(path: Path) -> list[KvRecord]:
    """Records of a JSON file: a list of objects as recorded with vLLM 0.33.0.

    Raises:
        SpecError: unreadable, not JSON, or a key missing or of the wrong kind; names file, record and key.
    """
    return read_records(path, _FILE, _Record.record)


def verify_kv(file: Path) -> list[Agreement]:
    """Replay every record of a file through our planning. Raises SpecError as `read_kv_recording`."""
    return [compare_kv(record) for record in read_kv_recording(file)]


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


class _Record(BaseModel):
    """One entry of the file, as it is spelled there."""

    model_config = ConfigDict(strict=True, frozen=True)

    model: str
    layer_kinds: str
    page_bytes: dict[str, PositiveInt]
    block_size: dict[str, PositiveInt]
    sliding_window: int | None = None
    max_model_len: PositiveInt
    max_num_batched_tokens: PositiveInt
    in_flight_batches: PositiveInt
    partition: list[int]
    available_bytes_per_stage: list[int]
    num_blocks: int
    max_group_layers_per_stage: list[int]
    num_groups: int
    capacity: Annotated[list[float], Field(min_length=2, max_length=2)]  # tokens, concurrency

    def record(self) -> KvRecord:
        """The record as our planning understands it."""
        caches = {letter: self._cache(letter) for letter in set(self.layer_kinds)}
        in_flight = self.in_flight_batches * self.max_num_batched_tokens
        return KvRecord(
            name=self.model,
            model=CacheModel(tuple(caches[letter] for letter in self.layer_kinds), self.max_model_len, in_flight),
            partition=tuple(self.partition),
            free_bytes=tuple(self.available_bytes_per_stage),
            num_blocks=self.num_blocks,
            group_layers=tuple(self.max_group_layers_per_stage),
            groups=self.num_groups,
            tokens=int(self.capacity[0]),
            concurrency=self.capacity[1],
        )

    def _cache(self, letter: str) -> LayerCache:
        if letter not in _LETTERS:
            raise SpecError(f"layer_kinds has {letter!r}; known are {', '.join(_LETTERS)}")
        name, kind = _LETTERS[letter]
        for key, values in (("page_bytes", self.page_bytes), ("block_size", self.block_size)):
            if name not in values:
                raise SpecError(f"{key}: {name} is missing")
        window = self.sliding_window if kind is Cache.WINDOW else None
        if kind is Cache.WINDOW and window is None:
            raise SpecError("sliding_window is missing")
        return LayerCache(kind, self.page_bytes[name], self.block_size[name], window)


_FILE = TypeAdapter(Annotated[list[_Record], Field(min_length=1)])
