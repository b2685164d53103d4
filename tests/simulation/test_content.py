"""Which tokens are the same: owners of spans, over groups within groups and over conversations."""

from __future__ import annotations

import pytest

from partitune.errors import SpecError
from partitune.simulation.content import apart, fewest_computed, spans
from partitune.simulation.request import Request, SharedPrefix


def alike(first: Request, second: Request, *others: Request) -> int:
    """Tokens that two texts have in common, token by token, as a cache would find them."""
    texts = spans([first, second, *others])

    def owner(request: Request, token: int) -> int:
        return next((span.owner for span in texts[request.id] if token < span.end), -1 - int(request.id))

    longest = min(each.prompt_tokens + each.output_tokens for each in (first, second))
    return next((token for token in range(longest) if owner(first, token) != owner(second, token)), longest)


def ask(name: str, prompt: int, *prefix: tuple[str, int], continues: str | None = None, answer: int = 10) -> Request:
    shared = tuple(SharedPrefix(group, tokens) for group, tokens in prefix)
    return Request(name, 0.0, prompt, answer, prefix=shared, continues=continues)


SYSTEM = ("system", 100)


def test_strangers_have_nothing_in_common() -> None:
    assert alike(ask("0", 50), ask("1", 50)) == 0


def test_a_group_ends_where_the_shorter_prefix_ends() -> None:
    assert alike(ask("0", 150, ("g", 100)), ask("1", 150, ("g", 60))) == 60


def test_conversations_under_one_system_prompt_share_that_and_their_own_rounds() -> None:
    one, same, other = (ask(str(i), 400, SYSTEM, (talk, 300)) for i, talk in enumerate("aab"))
    assert (alike(one, same), alike(one, other)) == (300, 100)


def test_a_group_after_another_beginning_is_another_text() -> None:
    assert alike(ask("0", 400, SYSTEM, ("a", 300)), ask("1", 400, ("elsewhere", 100), ("a", 300))) == 0


def test_the_next_round_holds_prompt_and_answer() -> None:
    first, second = ask("0", 120, SYSTEM, answer=30), ask("1", 200, continues="0")
    assert alike(first, second) == 150
    assert alike(second, ask("2", 300, continues="1"), first) == 210
    assert alike(second, ask("2", 300, SYSTEM), first) == 100


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([ask("0", 20, ("g", 32))], "request 0: a prefix of 32 tokens must be part of its prompt of 20"),
        ([ask("0", 90, ("g", 32), ("h", 32))], "request 0: a prefix of 32 tokens must be .* longer than what comes"),
        ([ask("0", 90, continues="7")], "request 0: continues 7, which is not there"),
        ([ask("0", 90, continues="1"), ask("1", 120, continues="0")], "continues 0, in a circle"),
        ([ask("0", 90), ask("1", 99, continues="0")], "prompt of 99 tokens is shorter than the text of 0, 100 tokens"),
    ],
)
def test_what_cannot_be_is_refused(requests: list[Request], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spans(requests)


def test_those_of_one_rank_share_what_they_share_where_what_they_continue_went_elsewhere() -> None:
    everyone = [
        ask("0", 120, SYSTEM, answer=30),
        ask("1", 200, ("mail", 180), continues="0"),
        ask("2", 300, continues="1"),
        ask("3", 260, continues="1"),
        ask("4", 400, ("mail", 180), continues="0"),
    ]
    for kept in ([0, 2, 4], [1, 3], [2, 3], [0, 2, 3], [3, 4]):
        some = [everyone[index] for index in kept]
        of_rank = apart(some, everyone)
        for first in range(len(some)):
            for second in range(first):
                wanted = alike(some[first], some[second], *everyone)
                assert alike(of_rank[first], of_rank[second], *of_rank) == wanted, (kept, first, second)


def test_what_is_shared_is_computed_once_and_of_a_prompt_at_least_its_end() -> None:
    assert fewest_computed((ask("0", 50), ask("1", 7))) == (57, 50 * 51 / 2 + 7 * 8 / 2)
    system = (ask("0", 120, SYSTEM), ask("1", 130, SYSTEM), ask("2", 100, SYSTEM))
    assert fewest_computed(system)[0] == 100 + 20 + 30 + 1
    first, second = ask("0", 120, SYSTEM, answer=30), ask("1", 200, continues="0")
    talk = (first, second, ask("2", 210, ("x", 205), continues="0"))
    tokens, pairs = fewest_computed(talk)
    assert tokens == 120 + (200 - 150) + (210 - 150)
    assert pairs == sum(range(1, 121)) + sum(range(151, 201)) + sum(range(151, 211))
