"""Recorded prompts that were found in the radix cache although the record does not say who shares with whom.

Decision: how much of a prompt was found follows from what was computed; in whose text, is not in such a record and does
not matter as long as nothing is evicted: any prompt that is long enough and was read before gives the same. So the
first one is taken, and everything else that was recorded is still held against the simulation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from partitune.simulation.request import Request, SharedPrefix


def with_prefixes(requests: Sequence[Request], steps: Sequence[Mapping[str, int]]) -> list[Request]:
    """The requests with the prefixes that explain what was computed of each.

    Args:
        requests: none of which names a prefix.
        steps: per step the tokens that every request computed, by its id.
    """
    computed: dict[str, int] = {}
    for step in steps:
        for name, tokens in step.items():
            computed[name] = computed.get(name, 0) + tokens
    known = {request.id: request for request in requests}
    found: dict[str, int] = {}
    whole: dict[str, int] = {}
    prefixes: dict[str, tuple[SharedPrefix, ...]] = {}
    for name in computed:  # in the order in which they were first run
        request = known[name]
        # The last token that a request makes is not computed any more; one that was sent back computes more, not less.
        cached = request.prompt_tokens + request.output_tokens - 1 - computed[name]
        if cached > 0:
            source = next((other for other in found if known[other].prompt_tokens >= cached), None)
            if source is not None:
                whole[source] = known[source].prompt_tokens
                prefixes[name] = (SharedPrefix(f"prompt of {source}", cached),)
        found[name] = cached
    for name, tokens in whole.items():
        mine = SharedPrefix(f"prompt of {name}", tokens)
        before = tuple(prefix for prefix in prefixes.get(name, ()) if prefix.tokens < tokens)
        prefixes[name] = (*before, mine)
    return [replace(request, prefix=prefixes.get(request.id, ())) for request in requests]
