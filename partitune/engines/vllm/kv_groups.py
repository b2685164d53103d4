"""Which layers share a block table in vLLM, and with what pages.

Decision: grouping is of the whole model and knows no stages, so it stands apart from the sizes that follow from it. Two
ways exist. Where the cache lies layer by layer, every page has one size and layers of different kinds are dealt out
over groups of equal counts. Where it lies block by block (`blocks_outermost`), pages keep their sizes side by side in a
block and groups are made so that they fill it alike.

Source: vLLM 0.33.0 `v1/core/kv_cache_planning.py` (get_kv_cache_groups, _get_kv_cache_groups_uniform_page_size,
unify_kv_cache_spec_page_size, _get_packed_kv_cache_groups); `v1/core/kv_cache_utils.py` of 0.32.0 has the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from partitune.errors import InfeasibleSpace


class Cache(StrEnum):
    """What a layer keeps of a sequence."""

    TOKENS = "tokens"  # every token (multi-head, grouped-query or latent attention)
    WINDOW = "window"  # the last tokens
    STATE = "state"  # one fixed state


@dataclass(frozen=True, slots=True)
class LayerCache:
    """The cache of one layer on one TP rank. Equal values mean that layers can share a group."""

    kind: Cache
    page_bytes: int  # of one block
    block_size: int  # tokens in one block
    window: int | None = None  # tokens, for WINDOW


@dataclass(frozen=True, slots=True)
class CacheModel:
    """A model as the KV planner sees it."""

    layers: tuple[LayerCache | None, ...]  # None: the layer keeps nothing
    max_model_len: int
    max_in_flight_tokens: int  # batches in flight * max_num_batched_tokens: what a window keeps besides itself
    state_blocks: int = 1  # of a request in a state group: 1; with prefix caching 2, or 3 (see `state_exports`)
    blocks_outermost: bool = False  # a block of all layers lies in one piece, so that layers may differ in their pages


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table."""

    layers: tuple[int, ...]
    caches: tuple[LayerCache, ...]  # of those layers, pages unified


@lru_cache(maxsize=32)  # one planning asks several times, and only flags change the answer, not the partition
def group_layers(model: CacheModel) -> tuple[Group, ...]:
    """Layers of the whole model by the block tables they share (`get_kv_cache_groups`).

    Returns:
        Groups of layer indices in model order; none where no layer keeps anything.

    Raises:
        InfeasibleSpace: the engine crashes on these.
    """
    caches = {index: cache for index, cache in enumerate(model.layers) if cache is not None}
    if not caches:
        return ()
    first = next(iter(caches.values()))
    if all(_same_slots(cache, first) for cache in caches.values()):
        return (Group(tuple(caches), tuple(caches.values())),)
    if model.blocks_outermost and len({cache.page_bytes for cache in caches.values()}) > 1:
        return tuple(_packed_groups(caches))
    buckets: dict[LayerCache, list[int]] = {}
    for index, cache in _unify_pages(caches).items():
        buckets.setdefault(cache, []).append(index)
    fewest, most = min(map(len, buckets.values())), max(map(len, buckets.values()))
    size = most if most < 1.5 * fewest else fewest
    groups = []
    for cache, members in buckets.items():
        count = -(-len(members) // size)
        for offset in range(count):
            chosen = members[offset::count]  # strided, so that every stage holds some layers of every group
            groups.append(Group(tuple(chosen), (cache,) * len(chosen)))
    return tuple(groups)


def _same_slots(cache: LayerCache, first: LayerCache) -> bool:
    """True when one block table serves both: same kind and block, pages may differ (but states not)."""
    same = cache.kind is first.kind and cache.block_size == first.block_size and cache.window == first.window
    return same and (cache.kind is not Cache.STATE or cache.page_bytes == first.page_bytes)


def _unify_pages(caches: dict[int, LayerCache]) -> dict[int, LayerCache]:
    """Give every layer the largest page: longer blocks where they divide it, padding elsewhere."""
    largest = max(cache.page_bytes for cache in caches.values())
    unified = {}
    for index, cache in caches.items():
        times, rest = divmod(largest, cache.page_bytes)
        longer = 1 if rest or cache.kind is Cache.STATE else times
        unified[index] = replace(cache, page_bytes=largest, block_size=cache.block_size * longer)
    return unified


@dataclass(frozen=True, slots=True)
class _Bucket:
    """Layers that one block table would serve, by the size of their pages."""

    by_page: Mapping[int, Sequence[int]]  # bytes of a page -> layers
    kind: Cache

    @property
    def layers(self) -> int:
        return sum(map(len, self.by_page.values()))

    @property
    def repeats(self) -> int:
        """Layers of the most frequent page."""
        return max(map(len, self.by_page.values()))

    @property
    def balanced(self) -> bool:
        """As many layers of every page: a pattern that repeats, and can be split between two repetitions."""
        return len(set(map(len, self.by_page.values()))) == 1

    def widest(self, groups: int) -> int:
        """Bytes of a block in the largest of so many groups."""
        return sum(-(-len(layers) // groups) * page for page, layers in self.by_page.items())


def _packed_groups(caches: Mapping[int, LayerCache]) -> Iterator[Group]:
    """Groups whose pages, of whatever sizes, lie side by side in a block (`_get_packed_kv_cache_groups`)."""
    buckets = _buckets(caches)
    mixed = max((each.repeats for each in buckets if each.balanced and len(each.by_page) > 1), default=0)
    repeats = _least_padding([each.repeats for each in buckets if each.balanced], mixed) if mixed else None

    def split(bucket: _Bucket) -> int:
        return -(-bucket.repeats // repeats) if bucket.balanced and repeats else 1

    def shrinks(bucket: _Bucket) -> bool:
        """True where a group may hold as little as one layer, so that it need not widen a block."""
        return bucket.kind is Cache.STATE or (repeats is None and bucket.kind is Cache.WINDOW)

    block = max(each.widest(each.layers if shrinks(each) else split(each)) for each in buckets)
    for bucket in buckets:
        count = split(bucket)
        if shrinks(bucket):
            fitting = max(block // next(iter(bucket.by_page)), 1)
            count = max(count, -(-bucket.layers // fitting))
        if count == 1:
            layers = sorted(layer for same in bucket.by_page.values() for layer in same)
            yield _group(caches, layers)
            continue
        patterns = list(zip(*bucket.by_page.values(), strict=False))
        if count > len(patterns) or not bucket.balanced:
            raise InfeasibleSpace("vLLM cannot pack windows of these page sizes into blocks of all layers")
        for first in range(count):
            yield _group(caches, [layer for pattern in patterns[first::count] for layer in pattern])


def _group(caches: Mapping[int, LayerCache], layers: Sequence[int]) -> Group:
    return Group(tuple(layers), tuple(caches[layer] for layer in layers))


def _buckets(caches: Mapping[int, LayerCache]) -> list[_Bucket]:
    """Layers in model order, each with the first that it can share a block table with."""
    found: list[tuple[LayerCache, dict[int, list[int]]]] = []
    for index, cache in caches.items():
        own = next((by_page for first, by_page in found if _same_slots(cache, first)), None)
        if own is None:
            own = {}
            found.append((cache, own))
        own.setdefault(cache.page_bytes, []).append(index)
    return [_Bucket(by_page, first.kind) for first, by_page in found]


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size, from `least` on, that pads `counts` up to its multiples by least; of equal ones the largest."""
    sizes = range(least, max(counts) + 1)
    return min(sizes, key=lambda size: (sum(-count % size for count in counts), -size))
