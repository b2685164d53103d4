"""Holds our KV planning against a recording of the engine's own.

Decision: a recording is read strictly (unknown shapes are errors, never skipped) and replayed through `kv_planning`;
the first field that differs is reported with both values. So "the cache has the very size" is something a user can
check on the engine version at hand.
"""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from partitune.engines.recordings import Agreement, Record
from partitune.engines.vllm.kv_groups import Cache, CacheModel, LayerCache
from partitune.engines.vllm.kv_planning import kv_cache
from partitune.errors import PartituneError, SpecError

_LETTERS = {"f": ("full", Cache.TOKENS), "l": ("linear", Cache.STATE), "w": ("window", Cache.WINDOW)}


class KvRecord(Record, extra="forbid"):
    """One partition put through the engine's planning: what went in and what came out, as the file spells it."""

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
    mamba_cache_mode: Literal["none", "align"] = "none"
    prefill_checkpoint_blocks: NonNegativeInt = 0  # of a state group
    kv_cache_layout: Literal["LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC"] = "LBNHC"  # from outside to inside

    @cached_property
    def cache_model(self) -> CacheModel:
        """What the planner is given. Raises SpecError for a kind of layer that is unknown or has no sizes."""
        caches = {letter: self._cache(letter) for letter in set(self.layer_kinds)}
        return CacheModel(
            tuple(caches[letter] for letter in self.layer_kinds),
            self.max_model_len,
            self.in_flight_batches * self.max_num_batched_tokens,
            state_blocks=2 + self.prefill_checkpoint_blocks if self.mamba_cache_mode == "align" else 1,
            blocks_outermost=self.kv_cache_layout.startswith("B"),
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

    def check(self) -> None:
        """Raises SpecError for what `cache_model` cannot be made of."""
        _ = self.cache_model

    def agreement(self) -> Agreement:
        """What our planning makes of the record, which goes by its model and partition."""
        return Agreement(f"{self.model} {','.join(map(str, self.partition))}", self.difference(), self.model)

    def difference(self) -> str | None:
        """The first figure that our planning makes another than the engine did; None: all agree."""
        try:
            cache = kv_cache(self.cache_model, self.partition, self.available_bytes_per_stage)
        except PartituneError as error:
            return f"the engine planned {self.num_blocks} blocks, we refuse: {error}"
        tokens, concurrency = self.capacity
        for name, engine, ours in (
            ("num_blocks", self.num_blocks, cache.num_blocks),
            ("max_group_layers_per_stage", tuple(self.max_group_layers_per_stage), cache.group_layers),
            ("num_groups", self.num_groups, cache.groups),
            ("capacity tokens", int(tokens), cache.tokens),
            ("capacity concurrency", concurrency, cache.concurrency),
        ):
            if engine != ours:
                return f"{name} is {engine} in the engine and {ours} here"
        return None
