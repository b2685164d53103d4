"""The KV blocks of the simulator written for the eye: every block an object, every prefix its tokens, no shortcuts.

It follows vLLM 0.33.0 `v1/core/kv_cache_manager.py`, `kv_cache_coordinator.py`, `single_type_kv_cache_manager.py` and
`block_pool.py` line by line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from partitune.engines.vllm.scheduler.settings import SchedulerSettings
from partitune.simulation.request import Request


def text(request: Request, known: Mapping[str, Request]) -> list[object]:
    """Prompt and output of a request, token by token: equal tokens at equal places are the same."""
    tokens: list[object] = []
    if request.continues is not None:
        tokens = list(text(known[request.continues], known))
    for prefix in request.prefix:
        tokens += [(prefix.group, place) for place in range(len(tokens), prefix.tokens)]
    end = request.prompt_tokens + request.output_tokens
    return tokens + [("own", request.id, place) for place in range(len(tokens), end)]


@dataclass(eq=False)
class Block:
    key: tuple[int, int] | None = None  # group, hash
    users: int = 0


@dataclass(eq=False)
class Tracked:
    request: Request
    sent_s: float
    number: int  # in order of arrival
    text: list[object]  # prompt and output, token by token
    hashes: list[int] = field(default_factory=list)
    outputs: int = 0
    computed: int = 0
    placeholders: int = 0
    in_flight: int = 0
    stale: int = 0
    eligible_step: int = 0
    token_s: float = 0.0  # when the newest token is on every stage
    tables: list[list[Block | None]] = field(default_factory=list)  # a block table a group; None: the null block
    retired: dict[int, int] = field(default_factory=dict)  # of a state group: leading blocks that went
    named: list[int] = field(default_factory=list)  # blocks a group whose hash is set, where it is to be
    junction: int = 0  # tokens of a prefix that is cached but whose states are not
    preempted: bool = False
    deferred: bool = False
    reading: bool = True  # its prompt (and, after a preemption, output) is not read to its end
    state: str = "waiting"
    token_times: list[float] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.request.prompt_tokens + self.outputs


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@dataclass(frozen=True)
class Group:
    """Layers with one block table; a window of 0 keeps every token."""

    window: int = 0
    state: bool = False


class Cache:
    """KVCacheManager, HybridKVCacheCoordinator, the managers of one group each, and BlockPool.

    The queue of free blocks always begins with those without a hash, so these are only counted.
    """

    def __init__(self, settings: SchedulerSettings) -> None:
        s = self.settings = settings
        self.blank = s.num_blocks - 1
        self.numbers: dict[tuple[object, ...], int] = {}
        self.queue: list[Block] = []
        self.known: dict[tuple[int, int], list[Block]] = {}
        self.watermark = int(s.watermark * s.num_blocks)
        self.enabled = s.enable_prefix_caching and (s.align_chunks or not s.state_groups)
        others = [Group(window) for window in s.windows]
        others += [Group(2, state=True)] * (s.state_groups if s.align_chunks else 0)
        full = [Group()] * s.full_groups
        self.groups = others + full if s.full_groups_last else full + others
        self.constant = 0 if s.align_chunks else s.state_groups
        self.fresh: set[tuple[int, int]] = set()  # cached_blocks_this_step

    @property
    def free(self) -> int:
        return self.blank + len(self.queue)

    def take(self, count: int) -> list[Block | None]:
        taken: list[Block | None] = []
        for _ in range(count):
            if self.blank:
                self.blank -= 1
                block = Block()
            else:
                block = self.queue.pop(0)
                assert block.key is not None
                self.known[block.key].remove(block)
                block.key = None
            block.users = 1
            taken.append(block)
        return taken

    def give(self, blocks: Sequence[Block | None]) -> None:
        for block in blocks:
            if block is not None:
                block.users -= 1
                if block.users == 0 and block.key is None:
                    self.blank += 1
                elif block.users == 0:
                    self.queue.append(block)

    # One group.

    def behind(self, group: Group, tokens: int) -> int:
        return max(0, tokens - group.window + 1) // self.settings.block_size if group.window else 0

    def need(self, group: Group) -> int:
        return 1 if group.state else ceil_div(group.window - 1, self.settings.block_size)

    def remove_skipped(self, seq: Tracked, processed: int) -> None:
        for index, (group, table) in enumerate(zip(self.groups, seq.tables, strict=True)):
            gone = min(self.behind(group, processed), len(table))
            if group.state:
                first = seq.retired.get(index, 0)
                freed = [p for p in range(gone - 1, first - 1, -1) if table[p] is not None]
                seq.retired[index] = max(first, gone)
            else:
                freed = []
                for position in range(gone - 1, -1, -1):
                    if table[position] is None:
                        break
                    freed.append(position)
            self.give([table[position] for position in freed])
            for position in freed:
                table[position] = None

    def exports(self, seq: Tracked, start: int, end: int) -> int:
        s, block = self.settings, self.settings.block_size
        border = (end - 1) // block * block
        if s.state_export_alignment is None:
            return 0
        if s.prefix_cache_retention_interval == 0 and end < max(seq.request.prompt_tokens, seq.tokens - 1):
            return 0
        valid = start % block == 0 and ceil_div(end, block) - 2 > (start - 1) // block
        valid = valid and start + block <= border and start < border < end
        return int(valid and (border - start) % s.state_export_alignment == 0)

    def wanted(self, seq: Tracked, end: int, hits: list[list[Block | None]], start: int, *, cap: bool) -> int:
        s = self.settings
        total = 0 if seq.tables else self.constant
        for index, (group, hit) in enumerate(zip(self.groups, hits, strict=True)):
            held = len(seq.tables[index]) if seq.tables else 0
            required = ceil_div(end, s.block_size)
            gone = self.behind(group, start) if not seq.tables else 0
            if group.state:
                new = required - len(hit) - held
                total += min(new, 1 + self.exports(seq, start, end)) if new > 0 else 0
            else:
                if cap and group.window:
                    longest = min(group.window - 1 + s.slots * s.max_num_batched_tokens, s.max_model_len)
                    required = min(required, ceil_div(longest, s.block_size) + 1)
                total += max(required - max(gone, len(hit) + held), 0)
            total += sum(block is not None and block.users == 0 for block in hit[gone:])
        return total

    # Looking up.

    def hash(self, seq: Tracked, position: int) -> int:
        """Of a block and all before it: equal numbers, equal tokens."""
        block = self.settings.block_size
        while len(seq.hashes) <= position:
            start = len(seq.hashes) * block
            chained = (seq.hashes[-1] if seq.hashes else -1, *seq.text[start : start + block])
            seq.hashes.append(self.numbers.setdefault(chained, len(self.numbers)))
        return seq.hashes[position]

    def at(self, seq: Tracked, indices: list[int], position: int) -> list[Block] | None:
        found = [self.known.get((index, self.hash(seq, position))) for index in indices]
        return [copies[0] for copies in found if copies] if all(found) else None

    def find_group(self, seq: Tracked, group: Group, indices: list[int], most: int) -> list[list[Block | None]]:
        computed: list[list[Block | None]] = [[None] * most for _ in indices]
        row = 0
        if not group.window:
            while row < most and (found := self.at(seq, indices, row)):
                for blocks, block in zip(computed, found, strict=True):
                    blocks[row] = block
                row += 1
            return [blocks[:row] for blocks in computed]
        for position in range(most - 1, -1, -1):
            found = self.at(seq, indices, position)
            row = row + 1 if found else 0
            for blocks, block in zip(computed, found or [], strict=False):
                blocks[position] = block
            if row >= self.need(group):
                return [blocks[: position + row] for blocks in computed]
        return [blocks[:row] for blocks in computed]

    def hits(self, seq: Tracked) -> list[list[Block | None]]:
        result: list[list[Block | None]] = [[] for _ in self.groups]
        seq.junction = 0
        if not self.enabled:
            return result
        kinds = sorted(dict.fromkeys(self.groups), key=lambda group: group.window > 0)
        length = (seq.tokens - 1) // self.settings.block_size
        longest = 0
        while True:
            current = length
            for group in kinds:
                indices = [index for index, each in enumerate(self.groups) if each == group]
                for index, blocks in zip(indices, self.find_group(seq, group, indices, current), strict=True):
                    result[index] = blocks
                current = len(result[indices[0]])
                longest = max(longest, current)
            if current >= length:
                break
            length = current
        if length < longest:
            seq.junction = longest * self.settings.block_size
        return result

    # allocate_slots

    def admit(self, seq: Tracked, new: int, hits: list[list[Block | None]], *, running: bool) -> bool:
        s = self.settings
        start = seq.computed
        if any(
            g.state and hit and hit[-1] and hit[-1].key in self.fresh for g, hit in zip(self.groups, hits, strict=True)
        ):
            return False
        free = self.free - (self.watermark if running else 0)
        if s.reserve_full_isl and self.wanted(seq, seq.tokens, hits, start, cap=True) > free:
            return False
        if self.wanted(seq, start + new, hits, start, cap=False) > free:
            return False
        self.take(self.constant)
        seq.retired = {}
        for group, hit in zip(self.groups, hits, strict=True):
            gone = min(self.behind(group, start), len(hit))
            for block in hit[gone:]:
                if block is not None:
                    if block.users == 0:
                        self.queue.remove(block)
                    block.users += 1
            seq.tables.append([*[None] * gone, *hit[gone:]])
            seq.named.append(len(hit))
        self.extend(seq, start, start + new)
        return True

    def allocate(self, seq: Tracked, new: int) -> bool:
        self.remove_skipped(seq, max(0, seq.computed - seq.in_flight))
        end = seq.computed + new
        if self.wanted(seq, end, [[] for _ in self.groups], seq.computed, cap=False) > self.free:
            return False
        self.extend(seq, seq.computed, end)
        return True

    def extend(self, seq: Tracked, start: int, end: int) -> None:
        required = ceil_div(end, self.settings.block_size)
        exports = self.exports(seq, start, end)
        for group, table in zip(self.groups, seq.tables, strict=True):
            if group.state and required > len(table):
                table += [None] * (required - 1 - exports - len(table))
            table += self.take(required - len(table))
        self.cache(seq, min(end, seq.tokens))

    def cache(self, seq: Tracked, tokens: int) -> None:
        if not self.enabled or not seq.tables:
            return
        block, retention = self.settings.block_size, self.settings.prefix_cache_retention_interval
        full = tokens // block
        for index, (group, table) in enumerate(zip(self.groups, seq.tables, strict=True)):
            for position in range(seq.named[index], full):
                need = self.need(group)
                segment = 1 if retention is None else retention // block
                kept = not group.window or (segment > 0 and position % segment >= segment - need)
                for border in ((seq.request.prompt_tokens - 1) // block, seq.junction // block):
                    kept = kept or border - need <= position < border
                entry = table[position]
                if kept and entry is not None and entry.key is None:
                    entry.key = (index, self.hash(seq, position))
                    self.known.setdefault(entry.key, []).append(entry)
                    if group.state:
                        self.fresh.add(entry.key)
            seq.named[index] = max(seq.named[index], full)

    def release(self, seq: Tracked) -> None:
        for table in seq.tables:
            self.give(table[::-1])
        if seq.tables:
            self.blank += self.constant
        seq.tables, seq.named = [], []
