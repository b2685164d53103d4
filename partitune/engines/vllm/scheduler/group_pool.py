"""KV blocks of a model whose layers differ: some keep every token, others the last ones of a window, or a fixed state.

Decision: what a request holds is a row of blocks, as in the engine, because which of them it still holds follows from
what was scheduled, what has come back and what was found, and no count says that. Groups of one kind hold the same
positions always, so they share a row. A fixed state that is kept at block borders is a window of two tokens whose row
is filled at its end only: one block at admission, one more when a chunk or a token enters a new block, the older one
back once that step has come back, so every chunk in flight keeps its own.

Source: vLLM 0.33.0 `v1/core/kv_cache_manager.py` (allocate_slots), `v1/core/single_type_kv_cache_manager.py`
(SingleTypeKVCacheManager, SlidingWindowManager, MambaManager in cache mode "align"), `kv_cache_coordinator.py`
(HybridKVCacheCoordinator). Simplified: blocks of all groups have the same number of tokens, and so have hashes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heapreplace

from partitune.engines.vllm.scheduler.cohort import Block, Cohort, Live, Row
from partitune.engines.vllm.scheduler.kinds import Kind, kinds_of
from partitune.engines.vllm.scheduler.kv_pool import Hit
from partitune.engines.vllm.scheduler.named_pool import OWN, UNNAMED, NamedPool
from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.errors import Stalled


class GroupPool(NamedPool):
    """A pool for groups of several kinds."""

    def __init__(self, settings: SchedulerSettings) -> None:
        super().__init__(settings)
        #: Only the chunk that ends a prompt saves a state on the way.
        self._exports_once = settings.prefix_cache_retention_interval == 0
        self._exporting = int(settings.state_export_alignment is not None)
        self._settings = settings
        self._kinds = kinds_of(settings)
        self._lookups = sorted(self._kinds, key=lambda kind: kind.window > 0)  # those of every token first
        self.growing = sum(kind.count for kind in self._kinds)
        self.trimming = sum(kind.count for kind in self._kinds if kind.window)
        self.trims = tuple(sorted({kind.window for kind in self._kinds if kind.window}))

    def most(self, tokens: int) -> int:
        """Blocks that one request of `tokens` tokens holds at most, one chunk of it in flight."""
        return self._most(tokens, 2 + self._exporting)

    def bound(self, tokens: int) -> int:
        """As the base, where every step in flight may keep a state, and one that it exports."""
        return self._most(tokens + self._slots + 1, (self._slots + 2) * (1 + self._exporting))

    def _most(self, tokens: int, states: int) -> int:
        blocks = -(-tokens // self._block)
        held = (kind.count * min(blocks, states if kind.state else kind.cap or blocks) for kind in self._kinds)
        return self._fixed + sum(held)

    # What others left.

    def find(self, live: Live) -> Hit:
        """The longest beginning that every group still has, its blocks, and how far the longest group went."""
        if not self.caches or not (live.preempted or len(live.texts) > 1 or live.continued):
            return Hit()
        length = (live.to_compute - 1) // self._block
        longest = 0
        whole = -1  # blocks of the groups of every token, once they were looked up
        found: dict[Kind, list[tuple[Block, ...] | None]] = {}
        while True:
            shortest = length
            for kind in self._lookups:
                if not kind.window and whole >= 0:
                    shortest = min(shortest, whole)
                    continue
                found[kind] = (self._seen if kind.window else self._run)(live, kind, shortest)
                shortest = len(found[kind])
                longest = max(longest, shortest)
                if not kind.window:
                    whole = shortest
            if shortest >= length:
                break
            length = shortest
        rows = [found[kind][:length] for kind in self._kinds]
        return Hit(length * self._block, rows=rows, junction=longest * self._block if longest > length else 0)

    def _run(self, live: Live, kind: Kind, most: int) -> list[tuple[Block, ...] | None]:
        """From the beginning as far as it goes."""
        row: list[tuple[Block, ...] | None] = []
        for end, owner in live.texts:
            for position in range(len(row), min(end, most)):
                if not (blocks := self._copies(kind, owner, position)):
                    return row
                row.append(blocks)
        return row

    def _seen(self, live: Live, kind: Kind, most: int) -> list[tuple[Block, ...] | None]:
        """Up to the last place of which a window has all it sees; with fewer only right from the beginning."""
        row: list[tuple[Block, ...] | None] = [None] * most
        count = 0
        for position in range(most - 1, -1, -1):
            blocks = self._copies(kind, live.owner(position), position)
            count = count + 1 if blocks else 0
            row[position] = blocks or None
            if count >= kind.need:
                return row[: position + count]
        return row[:count]

    # What a request holds.

    def admit(self, live: Live, hit: Hit, new: int, spare: int) -> bool:
        """As the base, kind by kind; states that are named in this very step cannot be taken over yet."""
        if self._new_states and any(
            kind.state and row and row[-1] and row[-1][0].key in self._new_states
            for kind, row in zip(self._kinds, hit.rows, strict=False)
        ):
            return False
        free, end = self.free - spare, hit.tokens + new
        if self._reserves:
            self.lacking = self._newcomer(live, hit, live.to_compute, capped=True) - free
            if self.lacking > 0:
                return False
        # What finds nothing needs less for its first chunk, unless that exports a state which the last one would not.
        less = self._reserves and self._exports_once and not hit.tokens
        if not less:
            self.lacking = self._newcomer(live, hit, end, capped=False) - free
            if self.lacking > 0:
                return False
        if hit.rows:
            live.rows = [
                self._adopt_row(kind, row, hit.tokens) for kind, row in zip(self._kinds, hit.rows, strict=True)
            ]
        else:
            live.rows = [Row([], 0, 0) for _ in self._kinds]
        self._take(self._fixed)
        self._extend(live, end, self._exports(live, hit.tokens, end), live.to_compute)
        return True

    def _newcomer(self, live: Live, hit: Hit, end: int, *, capped: bool) -> int:
        """Blocks that must be free for its first `end` tokens, those that it finds among free ones included."""
        blocks = -(-end // self._block)
        exports = self._exports(live, hit.tokens, end)
        total = self._fixed
        for number, kind in enumerate(self._kinds):
            wanted = min(blocks, kind.cap) if capped and kind.cap else blocks
            if hit.rows:
                row, gone = hit.rows[number], kind.behind(hit.tokens, self._block)
                wanted = max(wanted - max(len(row), 0 if kind.state else gone), 0)
                total += sum(not block.users for entry in row[gone:] if entry for block in entry)
            total += kind.count * (min(wanted, 1 + exports) if kind.state else wanted)
        return total

    def _adopt_row(self, kind: Kind, row: list[tuple[Block, ...] | None], tokens: int) -> Row:
        gone = min(kind.behind(tokens, self._block), len(row))
        for entry in row[gone:]:
            for block in entry or ():
                if not block.users:
                    del self._queue[block]
                    self.free -= 1
                block.users += 1
        return Row([*[None] * gone, *row[gone:]], gone, len(row))

    def missing(self, live: Live, tokens: int) -> int:
        """Blocks that `live` lacks to have `tokens` tokens, what it gives back before not counted."""
        more = -(-tokens // self._block) - len(live.rows[0].blocks)
        if more <= 0:
            return 0
        states = min(more, 1 + (self._exports(live, live.computed, tokens) if live.reading else 0))
        return sum(kind.count * (states if kind.state else more) for kind in self._kinds)

    def grow(self, live: Live, tokens: int) -> bool:
        """As the base; first the request gives back what no step in flight reads any more."""
        quiet = tokens <= live.covered and live.processed < live.trims_at
        if quiet and not live.reading and not self._settings.renames_states:
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
        more = -(-end // self._block) - len(live.rows[0].blocks)
        if more > 0:
            for kind, row in zip(self._kinds, live.rows, strict=True):
                held = min(more, 1 + exports) if kind.state else more
                row.blocks += [None] * (more - held) + [UNNAMED] * held
                self._take(held * kind.count)
            self._measure(live)
        if self.caches:
            self.write(live, min(end, known))

    def _measure(self, live: Live) -> None:
        """Note until when nothing changes: tokens that fit, and tokens back at which some are given back."""
        live.covered = len(live.rows[0].blocks) * self._block
        live.trims_at = math.inf
        for kind, row in zip(self._kinds, live.rows, strict=True):
            if kind.window:
                live.trims_at = min(live.trims_at, (row.gone + 1) * self._block + kind.window - 1)

    def _exports(self, live: Live, start: int, end: int) -> int:
        """1 where a chunk saves the state of its last border on the way, in a block of its own."""
        settings = self._settings
        if settings.state_export_alignment is None or (self._exports_once and end < live.prompt_end):
            return 0
        return int(settings.exports_state(start, end, (end - 1) // self._block * self._block))

    def _trim(self, live: Live, processed: int) -> None:
        """Give back what lies behind the windows, newest first, as tokens come back (remove_skipped_blocks)."""
        for kind, row in zip(self._kinds, live.rows, strict=True):
            gone = min(kind.behind(processed, self._block), len(row.blocks))
            if gone > row.gone:
                if self.caches:
                    self._keep(live, kind, row, gone)
                    self._name_own(live, kind, row, gone)
                self._give(kind, row.blocks[row.gone : gone])
                row.blocks[row.gone : gone] = [None] * (gone - row.gone)
                row.gone = gone
        self._measure(live)

    def release(self, live: Live, cached_tokens: int, *, comes_back: bool) -> None:
        """Take everything back from `live`, of which the first `cached_tokens` tokens can be found."""
        if self.caches:
            self.write(live, cached_tokens)
        for kind, row in zip(self._kinds, live.rows, strict=True):
            if comes_back:
                self._name_own(live, kind, row, len(row.blocks))
            self._give(kind, row.blocks[row.gone :])
        live.rows = []
        self.free += self._fixed
        self._blank += self._fixed

    # Names.

    def write(self, live: Live, tokens: int) -> None:
        """As the base: blocks that are worth keeping are kept for those who may ask for them."""
        end = tokens // self._block
        for kind, row in zip(self._kinds, live.rows, strict=True):
            if row.named < end:
                self._keep(live, kind, row, end)
            if kind.state and self._settings.renames_states and 0 < end == (live.prompt - 1) // self._block:
                self._new_states.update(block.key for block in (row.blocks[end - 1] or ())[:1])

    def _keep(self, live: Live, kind: Kind, row: Row, end: int) -> None:
        for position in kind.kept(live, self._block, range(row.named, min(end, len(row.blocks)))):
            if row.blocks[position] is UNNAMED:
                row.blocks[position] = OWN if position >= live.shared_blocks else self._named(live, kind, position)
        row.named = max(row.named, end)

    def _name_own(self, live: Live, kind: Kind, row: Row, end: int) -> None:
        """Let it find its own text again, of which the blocks up to `end` are given back."""
        for position in range(row.gone, end):
            if row.blocks[position] is OWN:
                row.blocks[position] = self._named(live, kind, position)

    def catch_up(self, turns: Sequence[tuple[Cohort, int]], running: Sequence[Live]) -> None:
        """As the base, but in the order of the skipped steps, since that decides what is forgotten."""
        events = []
        places: dict[Live, int] = {}
        for turn, (cohort, rounds) in enumerate(turns):
            for live in cohort.members:
                before = live.context - rounds
                if (first := _next(live, before, cohort.lag)) <= rounds:
                    places = places or {each: place for place, each in enumerate(running)}
                    events.append((first, turn, places[live], live, before))
        heapify(events)
        while events:
            number, turn, place, live, before = events[0]
            cohort, rounds = turns[turn]
            end = before + number
            if not self._grow(live, end, end - 1 - cohort.lag):
                raise Stalled(f"request {live.request.id}: steps were skipped for which no KV blocks are free")
            following = _next(live, before, cohort.lag)
            if following <= rounds:
                heapreplace(events, (following, turn, place, live, before))
            else:
                heappop(events)


def _next(live: Live, before: int, lag: int) -> int:
    """The next round at whose step a request with `before` tokens before the first takes or gives blocks."""
    return int(min(live.covered + 1 - before, live.trims_at + lag + 1 - before))
