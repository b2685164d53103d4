"""KV blocks of a model whose layers differ: some keep every token, others the last ones of a window, or a fixed state.

Decision: what a request holds is a row of blocks a group, as in the engine, because which of them it still holds
follows from what was scheduled, what has come back and what was found, and no count says that. A fixed state that is
kept at block borders is a window of two tokens whose row is filled at its end only: one block at admission, one more
when a chunk or a token enters a new block, the older one back once that step has come back, so every chunk in flight
keeps its own. A block gets a name when its content can be found; the others are alike. Free blocks without content are
handed out first, then the named ones in the order in which they were given back, which forgets what they hold.

Source: vLLM 0.33.0 `v1/core/single_type_kv_cache_manager.py` (SingleTypeKVCacheManager, SlidingWindowManager,
MambaManager in cache mode "align"), `kv_cache_coordinator.py` (HybridKVCacheCoordinator), `block_pool.py`. Simplified:
blocks of all groups have the same number of tokens, and so have hashes.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from partitune.engines.vllm.scheduler.cohort import Block, Cohort, Live, Row
from partitune.engines.vllm.scheduler.kv_pool import Hit, KvPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.errors import Stalled

_UNNAMED = Block((-1, -1, -1))  # any held block whose content nobody can find
_STATE_WINDOW = 2  # a state is needed by the token that follows, MambaManager.get_num_skipped_tokens


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share a row of blocks."""

    window: int = 0  # tokens; 0: every token is kept
    state: bool = False
    need: int = 1  # blocks in a row that a hit takes from it; of a window those that it sees
    cap: int | None = None  # blocks that admission counts at most
    segment: int = 1  # the last `need` blocks of so many are kept for others; 0: none


class GroupPool(KvPool):
    """A pool of named blocks."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        self.caches = settings.caches_prefixes
        retention = settings.prefix_cache_retention_interval
        segment = 1 if retention is None else retention // self._block
        in_flight = settings.slots * settings.max_num_batched_tokens
        full, others = [Group()] * settings.full_groups, []
        for window in settings.windows:
            need = -(-(window - 1) // self._block)
            cap = -(-min(window - 1 + in_flight, settings.max_model_len) // self._block) + 1
            others.append(Group(window, need=need, cap=cap, segment=segment))
        if settings.align_chunks:
            others += [Group(_STATE_WINDOW, state=True, segment=segment)] * settings.state_groups
        self._groups = [*others, *full] if settings.full_groups_last else [*full, *others]
        self._alike: list[tuple[Group, list[int]]] = []  # groups looked up together, those of every token first
        for group in sorted(dict.fromkeys(self._groups), key=lambda each: each.window > 0):
            self._alike.append((group, [i for i, each in enumerate(self._groups) if each == group]))
        self.trims = tuple(sorted({group.window for group in self._groups if group.window}))
        self.growing = len(self._groups)
        self._settings = settings
        self._every_chunk = retention != 0  # exports its state, not only the one that ends the prompt
        self._blank = self.free
        self._queue: OrderedDict[Block, None] = OrderedDict()  # free blocks whose content can be found
        self._known: dict[tuple[int, int, int], list[Block]] = {}  # (group, owner, position) -> copies
        self._new_states: set[tuple[int, int, int]] = set()  # named in this very step

    def most(self, tokens: int) -> int:
        """Blocks that one request of `tokens` tokens holds at most, one chunk of it in flight."""
        exports = int(self._settings.state_export_alignment is not None)
        return self._fixed + sum(
            min(2 + exports, -(-tokens // self._block))
            if group.state
            else self._capped(group, -(-tokens // self._block))
            for group in self._groups
        )

    def begin_step(self) -> None:
        """States named in the step before can be found from now on."""
        if self._new_states:
            self._new_states.clear()

    # What others left.

    def find(self, live: Live) -> Hit:
        """The longest beginning that every group still has, its blocks, and how far the longest group went."""
        if not self.caches:
            return Hit()
        length = (live.to_compute - 1) // self._block
        longest, whole = 0, -1  # blocks; -1: groups of every token are not looked up yet
        rows: list[list[Block | None]] = [[] for _ in self._groups]
        while True:
            shortest = length
            for group, indices in self._alike:
                if not group.window and whole >= 0:
                    shortest = min(shortest, whole)
                    continue
                found = (
                    self._run(live, indices, shortest)
                    if not group.window
                    else self._seen(live, indices, shortest, group)
                )
                for index, blocks in zip(indices, found, strict=True):
                    rows[index] = blocks
                shortest = len(found[0])
                whole = shortest if not group.window else whole
                longest = max(longest, shortest)
            if shortest >= length:
                break
            length = shortest
        for index, group in enumerate(self._groups):
            if not group.window:
                del rows[index][length:]
        return Hit(length * self._block, rows=rows, junction=longest * self._block if longest > length else 0)

    def _copies(self, live: Live, indices: Sequence[int], position: int) -> list[Block] | None:
        owner = live.owner(position)
        found = []
        for index in indices:
            if not (copies := self._known.get((index, owner, position))):
                return None
            found.append(copies[0])
        return found

    def _run(self, live: Live, indices: Sequence[int], most: int) -> list[list[Block | None]]:
        """From the beginning as far as it goes."""
        rows: list[list[Block | None]] = [[] for _ in indices]
        for position in range(most):
            found = self._copies(live, indices, position)
            if found is None:
                break
            for row, block in zip(rows, found, strict=True):
                row.append(block)
        return rows

    def _seen(self, live: Live, indices: Sequence[int], most: int, group: Group) -> list[list[Block | None]]:
        """The last place of which a window has all it sees; with fewer blocks only right from the beginning."""
        rows: list[list[Block | None]] = [[None] * most for _ in indices]
        row = 0
        end = 0
        for position in range(most - 1, -1, -1):
            found = self._copies(live, indices, position)
            if found is None:
                row = 0
                continue
            for blocks, block in zip(rows, found, strict=True):
                blocks[position] = block
            row += 1
            if row >= group.need:
                end = position + row
                break
        else:
            end = row
        for blocks in rows:
            del blocks[end:]
        return rows

    # What a request holds.

    def admit(self, live: Live, hit: Hit, new: int, spare: int) -> bool:
        """As the base, group by group; states that are named in this very step cannot be taken over yet."""
        rows = hit.rows or [[]] * len(self._groups)
        if any(
            group.state and row and row[-1] and row[-1].key in self._new_states
            for group, row in zip(self._groups, rows, strict=True)
        ):
            return False
        free = self.free - spare
        end = hit.tokens + new
        if self._reserves and self._newcomer(live, rows, hit.tokens, live.to_compute, capped=True) > free:
            return False
        if self._newcomer(live, rows, hit.tokens, end, capped=False) > free:
            return False
        live.rows = []
        for group, blocks in zip(self._groups, rows, strict=True):
            gone = self._behind(group, hit.tokens)
            for block in blocks[gone:]:
                if block is not None:
                    if not block.users:
                        del self._queue[block]
                        self.free -= 1
                    block.users += 1
            live.rows.append(Row([*[None] * min(gone, len(blocks)), *blocks[gone:]], gone, len(blocks)))
        self._take(self._fixed)
        self._extend(live, end, self._exports(live, hit.tokens, end), live.to_compute)
        return True

    def _newcomer(
        self, live: Live, rows: Sequence[Sequence[Block | None]], start: int, end: int, *, capped: bool
    ) -> int:
        blocks = -(-end // self._block)
        exports = self._exports(live, start, end)
        total = self._fixed
        for group, row in zip(self._groups, rows, strict=True):
            gone = self._behind(group, start)
            if group.state:
                total += min(max(blocks - len(row), 0), 1 + exports)
            else:
                wanted = self._capped(group, blocks) if capped else blocks
                total += max(wanted - max(gone, len(row)), 0)
            total += sum(block is not None and not block.users for block in row[gone:])
        return total

    def missing(self, live: Live, tokens: int) -> int:
        """Blocks that `live` lacks to have `tokens` tokens, what it gives back before not counted."""
        blocks = -(-tokens // self._block)
        if blocks <= len(live.rows[0].blocks):
            return 0
        exports = self._exports(live, live.computed, tokens) if live.reading else 0
        more = blocks - len(live.rows[0].blocks)
        return sum(min(more, 1 + exports) if group.state else more for group in self._groups)

    def grow(self, live: Live, tokens: int) -> bool:
        """As the base; first the request gives back what no step in flight reads any more."""
        if not live.reading and tokens <= live.covered and live.processed < live.trims_at:
            return True
        return self._grow(live, tokens, live.processed)

    def _grow(self, live: Live, tokens: int, processed: int) -> bool:
        if processed >= live.trims_at:
            self._trim(live, processed)
        if self.missing(live, tokens) > self.free:
            return False
        if live.reading:
            self._extend(live, tokens, self._exports(live, live.computed, tokens), live.to_compute)
        else:
            self._extend(live, tokens, 0, processed + 1)
        return True

    def _extend(self, live: Live, end: int, exports: int, known: int) -> None:
        """Add the blocks of the tokens up to `end`, which are free, and name those of the first `known`."""
        blocks = -(-end // self._block)
        for group, row in zip(self._groups, live.rows, strict=True):
            more = blocks - len(row.blocks)
            if more > 0:
                held = min(more, 1 + exports) if group.state else more
                row.blocks += [None] * (more - held)
                row.blocks += [_UNNAMED] * held
                self._take(held)
        self._measure(live)
        self.write(live, min(end, known))

    def _measure(self, live: Live) -> None:
        """Note until when nothing changes: tokens that fit, and tokens back at which some are given back."""
        live.covered = len(live.rows[0].blocks) * self._block
        pairs = zip(self._groups, live.rows, strict=True)
        live.trims_at = min(
            ((row.gone + 1) * self._block + group.window - 1 for group, row in pairs if group.window), default=math.inf
        )

    def _behind(self, group: Group, tokens: int) -> int:
        """Blocks that a group does not read any more after `tokens` tokens."""
        return max(0, tokens - group.window + 1) // self._block if group.window else 0

    def _capped(self, group: Group, blocks: int) -> int:
        return blocks if group.cap is None else min(blocks, group.cap)

    def _exports(self, live: Live, start: int, end: int) -> int:
        """1 where a chunk saves the state of its last border on the way, in a block of its own."""
        if end < live.prompt_end and not self._every_chunk:
            return 0
        return int(self._settings.exports_state(start, end, (end - 1) // self._block * self._block))

    def _trim(self, live: Live, processed: int) -> None:
        """Give back what lies behind the windows, newest first, as tokens come back (remove_skipped_blocks)."""
        for index, (group, row) in enumerate(zip(self._groups, live.rows, strict=True)):
            gone = min(self._behind(group, processed), len(row.blocks))
            if gone > row.gone:
                self._name_row(live, index, row, gone)
                self._give(row.blocks[position] for position in range(gone - 1, row.gone - 1, -1))
                row.blocks[row.gone : gone] = [None] * (gone - row.gone)
                row.gone = gone
        self._measure(live)

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:  # noqa: ARG002
        """Take everything back from `live`, of which the first `cached_tokens` tokens can be found."""
        self.write(live, cached_tokens)
        for row in live.rows:
            self._give(reversed(row.blocks))
        live.rows = []
        self.free += self._fixed
        self._blank += self._fixed

    # Names.

    def write(self, live: Live, tokens: int) -> None:
        """As the base: blocks that are worth keeping get their names."""
        end = tokens // self._block
        if self.caches:
            for index, row in enumerate(live.rows):
                if row.named < end:
                    self._name_row(live, index, row, end)

    def _name_row(self, live: Live, index: int, row: Row, end: int) -> None:
        if not self.caches:
            return
        group = self._groups[index]
        for position in self._kept(live, group, row.named, min(end, len(row.blocks))):
            if row.blocks[position] is not _UNNAMED:
                continue
            block = row.blocks[position] = Block((index, live.owner(position), position), 1)
            self._known.setdefault(block.key, []).append(block)
            if group.state:
                self._new_states.add(block.key)
        row.named = max(row.named, end)

    def _kept(self, live: Live, group: Group, start: int, end: int) -> Iterable[int]:
        """Positions whose content is worth keeping (reachable_block_mask)."""
        if not group.window or (group.segment and group.need >= group.segment):
            return range(start, end)
        kept = {p for p in range(start, end) if group.segment and p % group.segment >= group.segment - group.need}
        for border in {(live.prompt - 1) // self._block, live.junction // self._block}:
            kept.update(range(max(start, border - group.need), min(end, border)))
        return sorted(kept)

    # Free blocks.

    def _take(self, count: int) -> None:
        self.free -= count
        self._blank -= count
        while self._blank < 0:
            oldest, _ = self._queue.popitem(last=False)
            copies = self._known[oldest.key]
            copies.remove(oldest)
            if not copies:
                del self._known[oldest.key]
            self._blank += 1

    def _give(self, blocks: Iterable[Block | None]) -> None:
        for block in blocks:
            if block is _UNNAMED:
                self._blank += 1
                self.free += 1
            elif block is not None:
                block.users -= 1
                if not block.users:
                    self._queue[block] = None
                    self.free += 1

    def catch_up(self, turns: Sequence[tuple[Cohort, int]], running: Sequence[Live]) -> None:
        """As the base, but in the order of the skipped steps, since that decides what is forgotten."""
        places = {live: place for place, live in enumerate(running)}
        events = []
        for turn, (cohort, rounds) in enumerate(turns):
            for live in cohort.members:
                before = live.context - rounds
                if (first := self._next(live, before, cohort.lag)) <= rounds:
                    events.append((first, turn, places[live], live, before))
        heapify(events)
        while events:
            number, turn, place, live, before = events[0]
            cohort, rounds = turns[turn]
            end = before + number
            if not self._grow(live, end, end - 1 - cohort.lag):
                raise Stalled(f"request {live.request.id}: steps were skipped for which no KV blocks are free")
            following = self._next(live, before, cohort.lag)
            if following <= rounds:
                heapreplace(events, (following, turn, place, live, before))
            else:
                heappop(events)

    def _next(self, live: Live, before: int, lag: int) -> int:
        """The next round at whose step a request with `before` tokens before the first takes or gives blocks."""
        return int(min(live.covered + 1 - before, live.trims_at + lag + 1 - before))
