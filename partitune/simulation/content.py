"""Which tokens of two requests are the same: the only thing that caches of prefixes want to know of a text.

Decision: a text is a row of spans, each with an owner, and two tokens are the same when they lie at one place in spans
of one owner. An owner is a group together with all that comes before it, so equal owners mean equal beginnings and a
cache may compare a place without looking at the places before. The last span is the request's own: the rest of its
prompt, and its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from partitune.errors import SpecError
from partitune.simulation.request import Request, SharedPrefix


class Span(NamedTuple):
    """The tokens of a text from the end of the span before, or its beginning, to `end` (in tokens, not included)."""

    owner: int
    end: int


def spans(requests: Sequence[Request]) -> Mapping[str, tuple[Span, ...]]:
    """The spans of every request, by its id; the last one, its own, ends with its last output token.

    Raises:
        SpecError: a request continues one that is not there, or in a circle, or whose text is longer than its prompt;
            or its prefixes do not grow, or are no part of its prompt; names the request.
    """
    known = {request.id: request for request in requests}
    owners: dict[tuple[int, int, str], int] = {}  # (owner before, where it ends, name) -> owner
    found: dict[str, tuple[Span, ...]] = {}
    for request in requests:
        chain = [request]
        while (before := chain[-1].continues) is not None and before not in found:
            if before not in known or any(before == each.id for each in chain):
                reason = "in a circle" if before in known else "which is not there"
                raise SpecError(f"request {chain[-1].id}: continues {before}, {reason}")
            chain.append(known[before])
        for each in reversed(chain):
            if each.id not in found:
                found[each.id] = _spans(each, found.get(each.continues or "", ()), owners)
    return found


def _spans(request: Request, before: tuple[Span, ...], owners: dict[tuple[int, int, str], int]) -> tuple[Span, ...]:
    text = list(before)

    def add(name: str, end: int) -> None:
        last = text[-1] if text else Span(-1, 0)
        text.append(Span(owners.setdefault((*last, name), len(owners)), end))

    for prefix in request.prefix:
        if prefix.tokens > request.prompt_tokens or (text and prefix.tokens <= text[-1].end):
            raise SpecError(
                f"request {request.id}: a prefix of {prefix.tokens} tokens must be part of its prompt of "
                f"{request.prompt_tokens} and longer than what comes before it"
            )
        if prefix.tokens:
            add(f"group {prefix.group}", prefix.tokens)
    if text and text[-1].end > request.prompt_tokens:
        raise SpecError(
            f"request {request.id}: its prompt of {request.prompt_tokens} tokens is shorter than the text of "
            f"{request.continues}, {text[-1].end} tokens, which it continues"
        )
    add(f"request {request.id}", request.prompt_tokens + request.output_tokens)
    return tuple(text)


def apart(some: Sequence[Request], requests: Sequence[Request]) -> tuple[Request, ...]:
    """`some` of the requests, which share what they shared, where those that they continue are not among them."""
    here, known = {request.id for request in some}, {request.id: request for request in requests}

    def told(request: Request) -> Request:
        prefix, before = request.prefix, request.continues
        while before is not None and before not in here:
            earlier = known[before]
            text = SharedPrefix(f"text of {before}", earlier.prompt_tokens + earlier.output_tokens)
            prefix, before = (*earlier.prefix, text, *prefix), earlier.continues
        return request if before == request.continues else replace(request, prefix=prefix, continues=before)

    return tuple(map(told, some))


@lru_cache(maxsize=8)
def fewest_computed(requests: tuple[Request, ...]) -> tuple[int, float]:
    """Prompt tokens that a cache which forgets nothing leaves to compute, and those that these look back on in all.

    Of a text that several share every token is computed once, of every prompt at least the last.
    """
    shared: dict[int, tuple[int, int]] = {}  # owner of a group -> where its tokens begin and end
    tokens, pairs = 0, 0.0
    found = spans(requests)
    for request in requests:
        *before, _ = found[request.id]
        start = min(before[-1].end if before else 0, request.prompt_tokens - 1)
        tokens, pairs = tokens + request.prompt_tokens - start, pairs + _pairs(start, request.prompt_tokens)
        own = len(found[request.continues]) if request.continues else 0
        begin = before[own - 1].end if own else 0
        for span in before[own:]:
            shared[span.owner] = begin, max(span.end, shared.get(span.owner, (0, 0))[1])
            begin = span.end
    for begin, end in shared.values():
        tokens, pairs = tokens + end - begin, pairs + _pairs(begin, end)
    return tokens, pairs


def _pairs(begin: int, end: int) -> float:
    """Tokens that those from `begin` to `end` look back on, themselves included."""
    return (end * (end + 1) - begin * (begin + 1)) / 2
