"""Kinds of groups of layers: what each keeps of a request, and what of that is worth keeping for others.

Decision: a fixed state that is kept at block borders is a window of two tokens with one block of need, so that one set
of rules serves both; what else differs is said by `state`.

Source: vLLM 0.33.0 `v1/core/single_type_kv_cache_manager.py` (reachable_block_mask, get_num_skipped_tokens),
`v1/kv_cache_interface.py` (SlidingWindowSpec.max_admission_blocks_per_request).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from partitune.engines.vllm.scheduler.cohort import Live
from partitune.engines.vllm.scheduler.settings import SchedulerSettings

_STATE_WINDOW = 2  # tokens that a state is needed for, its own and the next: MambaManager.get_num_skipped_tokens


@dataclass(frozen=True, slots=True)
class Kind:
    """Groups of layers that hold the same positions of a request."""

    groups: range  # their numbers in the engine's order
    window: int = 0  # tokens; 0: every token is kept
    state: bool = False
    need: int = 1  # blocks in a row that a hit takes from it; of a window those that it sees
    cap: int | None = None  # blocks that admission counts at most
    #: Of so many blocks the last `need` are kept for others, besides where a prompt or a shared prefix ends; 0: none.
    segment: int = 1

    @property
    def count(self) -> int:
        """How many groups."""
        return len(self.groups)

    def behind(self, tokens: int, block: int) -> int:
        """Blocks that nothing reads any more after `tokens` tokens."""
        return max(0, tokens - self.window + 1) // block if self.window else 0

    def kept(self, live: Live, block: int, positions: range) -> Iterable[int]:
        """Those of a request's positions whose content is worth keeping (reachable_block_mask)."""
        segment, need = self.segment, self.need
        if not self.window or (segment and need >= segment):
            return positions
        start, end = positions.start, positions.stop
        border = (live.prompt - 1) // block
        last = range(max(start, border - need), min(end, border))
        if not segment and not live.junction:
            return last
        junction = live.junction // block
        kept = {*last, *range(max(start, junction - need), min(end, junction))}
        if segment:
            kept.update(position for position in positions if position % segment >= segment - need)
        return sorted(kept)


def kinds_of(settings: SchedulerSettings) -> tuple[Kind, ...]:
    """The kinds of the model's groups in the engine's order."""
    block = settings.block_size
    retention = settings.prefix_cache_retention_interval
    segment = 1 if retention is None else retention // block
    in_flight = settings.slots * settings.max_num_batched_tokens
    wanted = []
    for window in dict.fromkeys(settings.windows):
        cap = -(-min(window - 1 + in_flight, settings.max_model_len) // block) + 1
        kind = Kind(range(0), window, need=-(-(window - 1) // block), cap=cap, segment=segment)
        wanted.append((kind, settings.windows.count(window)))
    if settings.align_chunks:
        wanted.append((Kind(range(0), _STATE_WINDOW, state=True, segment=segment), settings.state_groups))
    full = (Kind(range(0)), settings.full_groups)
    wanted = [*wanted, full] if settings.full_groups_last else [full, *wanted]
    first, kinds = 0, []
    for kind, count in wanted:
        if count:
            kinds.append(replace(kind, groups=range(first, first + count)))
            first += count
    return tuple(kinds)
