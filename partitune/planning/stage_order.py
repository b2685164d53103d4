"""Which orders of unequal stages a launcher can really make.

Decision: stages stand in node order. Ranks are contiguous and a node's ranks are neighbours (vLLM 0.33 `--nnodes`,
SGLang 0.5.23 `--nnodes`), so two things can be chosen: which machine gets which node rank, and, on one machine, the
order of its GPUs (`CUDA_VISIBLE_DEVICES`). An order that takes turns between machines cannot be launched, however good
it would be.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from itertools import chain, groupby, product
from typing import TypeVar

_Hardware = TypeVar("_Hardware", bound=Hashable)


def launchable_orders(kinds: Sequence[_Hardware], nodes: Sequence[int]) -> Iterator[tuple[_Hardware, ...]]:
    """Every different order of the stages that can be launched, each once.

    Args:
        kinds: what each stage stands on, in the present order; equal kinds are interchangeable.
        nodes: node of each stage, in the present order.
    """
    machines = [
        tuple(sorted((kind for kind, _ in stages), key=kinds.index))
        for _, stages in groupby(zip(kinds, nodes, strict=True), key=lambda stage: stage[1])
    ]
    for ranks in _arrangements(machines):
        for parts in product(*map(_arrangements, ranks)):
            yield tuple(chain(*parts))


def count_orders(kinds: Sequence[Hashable]) -> int:
    """How many different orders these stages have, launchable or not."""
    return math.factorial(len(kinds)) // math.prod(math.factorial(count) for count in Counter(kinds).values())


def _arrangements(items: Sequence[_Hardware]) -> Iterator[tuple[_Hardware, ...]]:
    """Different arrangements of `items`, of which some may be equal."""
    if not items:
        yield ()
    for first in dict.fromkeys(items):
        rest = list(items)
        rest.remove(first)
        for others in _arrangements(rest):
            yield (first, *others)
