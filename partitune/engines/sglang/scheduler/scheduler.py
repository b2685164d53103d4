"""SGLang's scheduler under pipeline parallelism: what a slot runs when its turn comes.

Decision: every stage runs the same scheduler over the same requests and comes to the same batches, so it is run once. A
request is bound to the slot that computed the end of its prompt; only a retraction sends it back. Prompts go first: a
slot with a prompt to read does not decode in that round, unless decodes are mixed in. One prompt at most is cut into
chunks at a time, and its next chunk goes to whichever slot is visited next.

Source: SGLang 0.5.23 `srt/managers/scheduler.py` (get_next_batch_to_run, _get_new_batch_prefill_raw,
update_running_batch), `srt/managers/schedule_batch.py` (retract_decode, mix_with_running),
`srt/managers/scheduler_components/` (batch_result_processor.py, new_token_ratio_tracker.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from partitune.engines.sglang.scheduler.admission import Admission, Answer, Live
from partitune.engines.sglang.scheduler.kv_pool import KvTokens
from partitune.engines.sglang.scheduler.queue_order import MOST_MATCHED, active_policy, ordered
from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.errors import OutOfMemory

_INITIAL_RATIO = 0.7  # SGLANG_INIT_NEW_TOKEN_RATIO
_LEAST_RATIO = 0.14  # SGLANG_MIN_NEW_TOKEN_RATIO_FACTOR
_DECAY_STEPS = 600  # SGLANG_NEW_TOKEN_RATIO_DECAY_STEPS
_RETRACT_STEPS = 20  # SGLANG_RETRACT_DECODE_STEPS
_REFRESH_PASSES = 32  # passes between two looks at the waiting requests' cached prompts


@dataclass(slots=True, eq=False)
class MicroBatch:
    """What one slot runs in one round."""

    chunks: list[tuple[Live, int, int]]  # (request, new tokens, tokens before); empty: a decode
    decodes: list[Live]
    cut: Live | None = None  # the unfinished request of the moment, even when it is not in this batch
    back_s: float = 0.0  # stage 0 has processed its tokens

    @property
    def is_middle_chunk(self) -> bool:
        """True for nothing but a chunk that does not end its prompt: nobody needs its output."""
        return len(self.chunks) == 1 and not self.decodes and self.cut is not None

    @property
    def tokens(self) -> dict[str, int]:
        """Tokens that every request has computed, by its id."""
        return {live.id: new for live, new, _ in self.chunks} | {live.id: 1 for live in self.decodes}


@dataclass(slots=True, eq=False)
class _Slot:
    """One of the micro-batches for life."""

    running: list[Live] = field(default_factory=list)
    full: bool = False  # nobody is admitted until someone leaves
    last: MicroBatch | None = None  # a prefill whose requests have not joined `running`


class SglangScheduler:
    """The scheduler of every stage."""

    def __init__(self, settings: SglangSettings) -> None:
        self.settings = settings
        self.pool = KvTokens(settings)
        self.waiting: list[Live] = []
        self.slots = [_Slot() for _ in range(settings.slots)]
        self.retractions = 0
        self.looked_up = self.found = 0  # prompt tokens at first admission, and those of them that were cached
        self._unfinished: Live | None = None
        self._free_rows = settings.max_running_requests
        self._defer = 0  # slots that must decode before the next prefill
        self._passes = 0
        self._highest = min(_INITIAL_RATIO * settings.schedule_conservativeness, 1.0)
        self._lowest = min(self._highest * _LEAST_RATIO, 1.0)
        self._ratio = self._highest

    @property
    def is_idle(self) -> bool:
        """True when no request is anywhere."""
        alive = any(slot.running or slot.last for slot in self.slots)
        return not (self.waiting or self._unfinished or alive)

    def idle(self) -> None:
        """A round in which nothing was there to do."""
        self._ratio = self._highest

    # one turn
    def schedule(self, number: int) -> MicroBatch | None:
        """What slot `number` runs now; None: nothing.

        Raises:
            OutOfMemory: the engine would end or abort a request here.
        """
        slot = self.slots[number]
        unfinished = self._unfinished
        if unfinished is not None and unfinished.end > unfinished.prefix:
            self._checkpoint(unfinished)
        self._join(slot)
        batch = None if self._defers(slot) else self._prefill(slot)
        if batch is None and slot.running:
            batch = self._decode(slot)
        if batch is not None and batch.chunks:
            self._defer = self.settings.prefill_decode_interval
            slot.last = batch
        return batch

    def deliver(self, batch: MicroBatch) -> list[Live]:
        """The results of `batch` are back: requests with a new token, some of them finished."""
        prompts = []
        for live, _, _ in batch.chunks:
            if live.chunks_in_flight > 0:
                live.chunks_in_flight -= 1
            else:
                prompts.append(live)
        served = prompts + batch.decodes
        for number, live in enumerate(served):
            live.produced += 1
            if live.finished:
                self._release(live, keep=True)
            elif number < len(prompts):
                self._checkpoint(live)
        return served

    def _join(self, slot: _Slot) -> None:
        """Requests of the slot's last prefill decode with it from now on; finished ones leave."""
        last = slot.last
        if last is not None:
            everyone = [live for live, _, _ in last.chunks] + last.decodes
            aside = (last.cut, self._unfinished)
            kept = [live for live in everyone if not live.finished and live not in aside]
            if len(kept) < len(everyone) or not slot.running:
                slot.full = False
            slot.running = slot.running + kept
            slot.last = None
        before = len(slot.running)
        slot.running = [live for live in slot.running if not live.finished]
        if not slot.running or len(slot.running) < before:
            slot.full = False

    def _defers(self, slot: _Slot) -> bool:
        """True in a slot that must decode before the next prefill, unless too few would."""
        if len(slot.running) < self.settings.prefill_decode_interval_min_bs:
            self._defer = 0
        is_due = self._defer == 0
        self._defer -= not is_due
        return not is_due

    # prompts
    def _prefill(self, slot: _Slot) -> MicroBatch | None:
        settings = self.settings
        unfinished = self._unfinished
        if unfinished is None:
            if slot.full or not self.waiting:
                return None
            if min(settings.micro_batch_cap - len(slot.running), self._free_rows) <= 0:
                slot.full = True
                return None
        self._order()
        admission = Admission(settings, self.pool, slot.running, self._ratio, self._chunk_size())
        if unfinished is not None and not admission.add_chunk(unfinished):
            self._unfinished = None
        self._admit(slot, admission)
        if not admission.chosen:
            return None
        self.looked_up += admission.looked_up
        self.found += admission.found
        chosen = set(admission.chosen)
        self.waiting = [live for live in self.waiting if live not in chosen]
        if admission.unfinished is not None:
            self._unfinished = admission.unfinished
        if self._unfinished is not None:
            self._unfinished.chunks_in_flight += 1
        chunks = self._allocate(admission.chosen)
        decodes = self._mix(slot) if settings.mixes else []
        return MicroBatch(chunks, decodes, self._unfinished)

    def _chunk_size(self) -> int | None:
        settings = self.settings
        base, law, unfinished = settings.chunked_prefill_size, settings.dynamic_chunks, self._unfinished
        if base is None or law is None or unfinished is None or settings.stages == 1:
            return base
        page, most = settings.page_size, settings.max_prefill_tokens
        return law.next_chunk(unfinished.prefix, base, page, settings.max_model_len, most) or base

    def _order(self) -> None:
        """Who is asked first; without looking all up for that, the engine does so now and then against eviction."""
        policy = active_policy(self.settings, len(self.waiting))
        if policy != "fcfs":
            self.waiting = ordered(policy, self.waiting, self.pool)
        elif self.waiting and self.pool.keeps:
            if self._passes % _REFRESH_PASSES == 0:
                for live in reversed(self.waiting[:MOST_MATCHED]):
                    self.pool.find(live.path, live.length)
            self._passes += 1

    def _admit(self, slot: _Slot, admission: Admission) -> None:
        for live in self.waiting:
            if admission.state() is Answer.STOP:
                return
            held = sum(chosen.row for chosen in admission.chosen)
            room = min(self.settings.micro_batch_cap - len(slot.running), self._free_rows + held)
            if len(admission.chosen) >= room:
                slot.full = True
            if slot.full:
                return
            live.prefix = self.pool.find(live.path, live.length - 1)  # the last token's output is wanted
            answer = admission.add(live)
            if answer is not Answer.GO_ON:
                if answer is Answer.NO_MEMORY:
                    slot.full = bool(admission.chosen or slot.running)
                return

    def _allocate(self, chosen: Sequence[Live]) -> list[tuple[Live, int, int]]:
        pool = self.pool
        chunks = [(live, live.end - live.prefix, live.prefix) for live in chosen]
        new = sum(tokens for _, tokens, _ in chunks)
        wanted = new if pool.page == 1 else new + len(chunks) * pool.page
        taken = sum(pool.paged(live.end) - pool.paged(live.prefix) for live in chosen)
        pool.allocate(taken, wanted, f"a prefill of {new} tokens")
        for live in chosen:
            if not live.row:
                live.row = True
                self._free_rows -= 1
            live.committed = live.end
        return chunks

    def _mix(self, slot: _Slot) -> list[Live]:
        """Decodes that ride along; without room for their tokens they sit the round out."""
        if not slot.running or not self._fits(slot.running):
            return []
        decodes, slot.running = slot.running, []
        self._step(decodes)
        return decodes

    # decodes
    def _decode(self, slot: _Slot) -> MicroBatch:
        running = slot.running
        if self._fits(running):
            self._ratio = max(self._ratio - (self._highest - self._lowest) / _DECAY_STEPS, self._lowest)
        else:
            slot.running = running = self._retract(running)
            slot.full = False
        self._step(running)
        return MicroBatch([], running)

    def _fits(self, running: Sequence[Live]) -> bool:
        page = self.pool.page
        return self.pool.make_room(sum(page for live in running if live.committed % page == 0))

    def _step(self, running: Sequence[Live]) -> None:
        page = self.pool.page
        taken = sum(page for live in running if live.committed % page == 0)
        self.pool.allocate(taken, len(running) * page, f"a decode of {len(running)} requests")
        for live in running:
            live.committed += 1

    def _retract(self, running: Sequence[Live]) -> list[Live]:
        """Send requests back to the queue, least output first, until the others can decode."""
        kept = sorted(running, key=lambda live: (live.produced, -live.prompt), reverse=True)
        while len(kept) > 1:
            live = kept.pop()
            self._release(live, keep=False)
            self.pool.make_room(len(kept) * _RETRACT_STEPS)
            live.prefix = live.end = live.committed = 0
            self.waiting.append(live)
            self.retractions += 1
            if self._fits(kept):
                break
        if not self._fits(kept):
            raise OutOfMemory(
                f"request {kept[0].id} is alone in its micro-batch and finds no KV for its next token: SGLang aborts "
                "it; give it more KV or fewer requests in flight",
                excess=float(self.pool.page),
            )
        produced = sum(live.produced for live in kept) + _RETRACT_STEPS * len(kept)
        self._ratio = min(1.0, produced / (sum(live.target for live in kept) + 1))
        return kept

    # KV
    def _checkpoint(self, live: Live) -> None:
        """What a request has computed goes into the cache, which it keeps locked."""
        if self.pool.keeps:
            self.pool.insert(live.path, self.pool.floor(live.end), live.prompt)
        live.prefix = live.end

    def _release(self, live: Live, *, keep: bool) -> None:
        """A request gives its KV back; with `keep` the cache holds on to it until it is evicted."""
        pool = self.pool
        if keep and pool.keeps:
            pool.insert(live.path, pool.floor(live.committed), live.prompt)
        pool.free += pool.paged(live.committed) - live.path.tokens
        pool.let_go(live.path)
        live.row = False
        self._free_rows += 1
