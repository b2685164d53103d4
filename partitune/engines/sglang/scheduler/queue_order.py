"""In which order waiting requests are asked: as they came, or those first that find most of their prompt in the cache.

Decision: an order by the cache looks every waiting request up before each prefill, which touches the cache as in the
engine; `lpm` gives that up above so many requests, and puts off all but one of those that share what is not yet cached.

Source: SGLang 0.5.23 `srt/managers/schedule_policy.py` (SchedulePolicy.calc_priority and what it calls),
`srt/mem_cache/base_prefix_cache.py` (_dfs_weight_order).
"""

from __future__ import annotations

from collections.abc import Sequence

from partitune.engines.sglang.scheduler.admission import Live
from partitune.engines.sglang.scheduler.kv_pool import KvTokens
from partitune.engines.sglang.scheduler.radix_tree import Node
from partitune.engines.sglang.scheduler.settings import SglangSettings

#: Most waiting requests that are looked up at once (WAITING_QUEUE_PREFIX_MATCH_MAX).
MOST_MATCHED = 128
_LITTLE_CACHED = 32  # IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD
_MUCH_ALIKE = 32  # IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD


def active_policy(settings: SglangSettings, waiting: int) -> str:
    """The order that is used with so many waiting requests."""
    gives_up = settings.schedule_policy == "lpm" and waiting > MOST_MATCHED
    return settings.schedule_policy if settings.radix_cache and not gives_up else "fcfs"


def ordered(policy: str, waiting: Sequence[Live], pool: KvTokens) -> list[Live]:
    """`waiting` by `policy`, one of those that look at the cache."""
    put_off = _looked_up(waiting, pool)
    if policy == "dfs-weight":
        return _by_weight(waiting, pool.tree.root)
    return sorted(waiting, key=lambda live: 1 if live in put_off else -min(live.path.tokens, live.length - 1))


def _looked_up(waiting: Sequence[Live], pool: KvTokens) -> set[Live]:
    """Look every request up; those that share much with one before them that is not cached either."""
    put_off = set()
    known: dict[int, int] = {}  # owner of a span -> tokens up to which some request before has it
    for live in waiting:
        if pool.find(live.path, live.length) > _LITTLE_CACHED:
            continue
        shared, spans = 0, [(owner, min(end, live.length)) for owner, end in live.path.text]
        for owner, end in spans:
            if owner not in known:
                break
            shared = min(end, known[owner])
            if shared < end:
                break
        if shared >= _MUCH_ALIKE:
            put_off.add(live)
        else:
            known.update({owner: max(end, known.get(owner, 0)) for owner, end in spans})
    return put_off


def _by_weight(waiting: Sequence[Live], root: Node) -> list[Live]:
    """Depth first, from each node to the child under which most requests end; its own requests last."""
    ending: dict[Node, list[Live]] = {}
    for live in waiting:
        ending.setdefault(live.path.node or root, []).append(live)
    downwards, stack = [], [root]
    while stack:
        node = stack.pop()
        downwards.append(node)
        stack.extend(node.children.values())
    weight: dict[Node, int] = {}
    for node in reversed(downwards):
        weight[node] = len(ending.get(node, ())) + sum(weight[child] for child in node.children.values())
    order: list[Live] = []
    todo = [(root, False)]
    while todo:
        node, below_done = todo.pop()
        if below_done:
            order.extend(ending.get(node, ()))
            continue
        todo.append((node, True))
        heaviest = sorted(node.children.values(), key=lambda child: -weight[child])
        todo.extend((child, False) for child in reversed(heaviest))
    return order
