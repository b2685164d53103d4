"""One prefill pass: which requests a slot may start or continue, and with how many tokens.

Decision: the budgets are kept as the engine keeps them, one object per pass, because their order of exhaustion decides
who waits: the chunk and input budgets end the pass, the memory budget marks the slot as full.

Source: SGLang 0.5.23 `srt/managers/schedule_policy.py` (PrefillAdder) and `srt/mem_cache/prefill_budget.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from partitune.engines.sglang.scheduler.kv_pool import KvTokens, Path
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import SpecError

#: Most output that is reserved for one request (`SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION`).
CLIP_NEW_TOKENS = 4096


class Answer(Enum):
    """What came of asking for one more request."""

    GO_ON = auto()
    NO_MEMORY = auto()
    STOP = auto()


@dataclass(slots=True, eq=False)
class Live:
    """One request inside the engine."""

    id: str
    prompt: int
    target: int  # tokens it will produce
    produced: int = 0  # tokens that have come back
    committed: int = 0  # tokens whose KV is allocated
    prefix: int = 0  # tokens that need no more computing
    end: int = 0  # this round computes [prefix, end)
    row: bool = False  # holds one of max_running_requests rows
    chunks_in_flight: int = 0  # chunks before its last one whose results are not back
    path: Path = field(default_factory=Path)

    @property
    def finished(self) -> bool:
        """True once it has all its tokens."""
        return self.produced >= self.target

    @property
    def length(self) -> int:
        """Prompt, and after a retraction the output that is read again."""
        return self.prompt + self.produced


class Admission:
    """Budgets of one pass of one slot."""

    def __init__(
        self, settings: SglangSettings, pool: KvTokens, running: Sequence[Live], ratio: float, chunk: int | None
    ) -> None:
        mixed = len(running) if settings.mixes else 0
        self._settings = settings
        self._pool = pool
        self._running = running
        self._ratio = 1.0 if settings.ignore_eos else ratio
        self._input = settings.max_prefill_tokens - mixed
        self._chunk = math.inf if chunk is None else chunk - mixed
        # Only this slot's requests are counted: what the other slots will still write is not reserved.
        self._all_offset = mixed + sum(
            min(live.target - live.produced, CLIP_NEW_TOKENS) * self._ratio for live in running
        )
        self._now_offset: float = mixed
        self._ends: list[tuple[float, int]] = []
        self.chosen: list[Live] = []
        self.unfinished: Live | None = None  # the request whose prompt this pass cuts
        self.looked_up = self.found = 0  # prompt tokens of requests admitted for the first time; those in the cache

    def _left(self) -> float:
        return self._pool.free + self._pool.evictable - self._all_offset

    def _left_now(self) -> float:
        return self._pool.free + self._pool.evictable - self._now_offset

    def state(self) -> Answer:
        """Whether the pass may go on."""
        if self._left() <= 0 or self._left_now() <= 0:
            return Answer.NO_MEMORY
        if self._input <= 0 or self._chunk <= 0:
            return Answer.STOP
        return Answer.GO_ON

    def _reserve(self, extend: int, new_tokens: int) -> None:
        extend = self._pool.paged(extend)
        now = extend + self._pool.page
        self._all_offset += now + new_tokens
        self._now_offset += now
        self._input -= extend
        self._chunk -= extend

    def add_chunk(self, live: Live) -> bool:
        """The next chunk of the unfinished request, before anyone else; True when it is still unfinished.

        Raises:
            SpecError: decodes alone fill the chunk; the engine would compute a negative chunk.
        """
        if self._chunk <= 0:
            raise SpecError(
                f"chunked_prefill_size {self._chunk + len(self._running)} leaves nothing beside {len(self._running)} "
                "mixed decodes; raise it or lower pp_max_micro_batch_size"
            )
        room = min(int(self._chunk), int(self._left()))
        if room <= 0:
            room = int(self._chunk)  # it goes on regardless, for it holds memory
        wanted = live.length - live.prefix
        extend = min(wanted, room)
        live.end = live.prefix + extend
        self.chosen.append(live)
        cut = wanted > room
        self._reserve(extend, 0 if cut else min(live.target, CLIP_NEW_TOKENS))
        return cut

    def add(self, live: Live) -> Answer:
        """A waiting request whose `prefix` has been looked up."""
        most = self._settings.prefill_max_requests
        if most is not None and len(self.chosen) >= most:
            return Answer.STOP
        if self._settings.ignore_eos and not self._settings.radix_cache:
            return self._add_to_the_end(live)
        wanted = live.length - live.prefix
        still = min(max(live.target - live.produced, 0), CLIP_NEW_TOKENS)
        # What it found in the cache is not there to be evicted.
        if wanted + still + self._pool.page >= self._left() - self._pool.unlocked(live.path):
            return Answer.NO_MEMORY
        paged = self._pool.paged(wanted)
        extend, new_tokens = wanted, min(live.target, CLIP_NEW_TOKENS)
        if self._chunk == math.inf and self.chosen and paged >= self._input:
            return Answer.STOP
        if paged > self._chunk:
            extend = self._pool.floor(live.prefix + self._pool.floor(int(self._chunk))) - live.prefix
            if extend <= 0:
                return Answer.STOP
            new_tokens = 0
            self.unfinished = live
        self._choose(live, extend, new_tokens)
        return self.state()

    def _choose(self, live: Live, extend: int, new_tokens: int) -> None:
        live.end = live.prefix + extend
        if self._pool.keeps and not live.produced:
            self.looked_up += live.prompt
            self.found += live.prefix
        self._pool.lock(live.path)
        self.chosen.append(live)
        self._reserve(extend, new_tokens)

    def _add_to_the_end(self, live: Live) -> Answer:
        """Without the radix cache and with known lengths the engine looks ahead to every request's last token."""
        wanted = live.length - live.prefix
        needed = self._pool.paged(wanted) + self._pool.page
        if needed > min(self._left_now(), self._left()):
            return Answer.NO_MEMORY
        self._note_end(live)
        room = self._left_now() - needed
        for index, (left, occupied) in enumerate(self._ends):
            others = len(self._ends) - index
            if room - left * others <= others:
                return Answer.NO_MEMORY
            room += occupied
        if wanted <= self._chunk:
            self._choose(live, wanted, min(live.target, CLIP_NEW_TOKENS))
        elif self._chunk <= 0:
            return Answer.STOP
        else:
            self.unfinished = live
            self._choose(live, int(self._chunk), 0)
        return self.state()

    def _note_end(self, live: Live) -> None:
        """Tokens until a request ends, and what it then frees; shortest first."""
        mine = (live.target * self._ratio - live.produced, live.length)
        if not self._ends:
            others = [*self._running, *self.chosen]
            ends = [mine, *((each.target * self._ratio - each.produced, each.length) for each in others)]
            self._ends = sorted((end for end in ends if end[0] > 0), key=lambda end: end[0])
        elif mine[0] > 0:
            # The engine's search: a newcomer that outlasts everybody lands before the last one, not behind it.
            place = next((i for i, end in enumerate(self._ends) if mine[0] <= end[0]), len(self._ends) - 1)
            self._ends.insert(place, mine)
