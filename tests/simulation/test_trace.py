"""Traces: their spellings, what lines say of shared beginnings, and what is refused."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.planning.caveats import caveats
from partitune.planning.resolve import resolve
from partitune.simulation.content import spans
from partitune.simulation.hashed_blocks import prefixes
from partitune.simulation.request import Request, SharedPrefix
from partitune.simulation.trace import read_trace
from partitune.spec.search_space import SearchSpace


def trace(path: Path, *lines: str) -> Path:
    file = path / "trace.jsonl"
    file.write_text("\n".join(lines))
    return file


def test_both_spellings_of_a_trace(tmp_path: Path) -> None:
    ours = read_trace(
        trace(
            tmp_path,
            '{"timestamp_s": 10.5, "prompt_tokens": 100, "output_tokens": 20}',
            "",
            '{"timestamp_s": 12, "prompt_tokens": 7, "output_tokens": 1, "user": "x"}',
        )
    )
    assert ours.doubts == ("trace.jsonl: not heeded of its lines: user",)
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in ours.requests] == [(0.0, 100, 20), (1.5, 7, 1)]
    mooncake = read_trace(
        trace(
            tmp_path,
            '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}',
            '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}',
        )
    )
    assert [(r.prompt_tokens, r.output_tokens) for r in mooncake.requests] == [(6955, 52), (6472, 26)]
    assert mooncake.requests[1].arrival_s == pytest.approx(3.053)


#: The first lines of Mooncake's conversation trace, blocks cut short.
MOONCAKE = (
    '{"timestamp": 0, "input_length": 1500, "output_length": 500, "hash_ids": [0, 1, 2]}',
    '{"timestamp": 0, "input_length": 1300, "output_length": 3, "hash_ids": [0, 46, 47]}',
    '{"timestamp": 5999, "input_length": 1053, "output_length": 26, "hash_ids": [0, 773, 774]}',
)
BAILIAN = {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132}


def bailian(**keys: object) -> str:
    return json.dumps({**BAILIAN, **keys})


def test_blocks_of_mooncake_are_prefixes_where_prompts_part(tmp_path: Path) -> None:
    read = read_trace(trace(tmp_path, *MOONCAKE))
    assert [r.prefix for r in read.requests] == [(SharedPrefix("block 0", 512),)] * 3
    assert read.doubts == (
        "trace.jsonl: hash_ids are of prompts: what a prompt repeats of an earlier answer is computed anew here",
    )
    # The two of the description share 12 blocks: 6144 tokens.
    line = '{{"timestamp": 0, "input_length": {}, "output_length": 1, "hash_ids": {}}}'
    ids = list(range(46, 58))
    both = read_trace(trace(tmp_path, line.format(6955, [*ids, 2353, 2354]), line.format(6472, [*ids, 2366])))
    assert {request.prefix for request in both.requests} == {(SharedPrefix("block 46", 6144),)}


def test_what_a_trace_does_not_say_or_nobody_heeds_is_a_doubt(tmp_path: Path) -> None:
    line = '{"timestamp": 0.5, "input_length": 2000, "output_length": 1, "hash_ids": [4], "user": 1}'
    milliseconds, _, short, others = read_trace(trace(tmp_path, line)).doubts
    assert "timestamp has fractions, and is read as milliseconds" in milliseconds
    assert "hash_ids of 1 requests end before their prompts" in short
    assert others == "trace.jsonl: not heeded of its lines: user"


def test_bailian_is_in_seconds_and_blocks_of_16_and_the_next_turn_continues_the_one_before(tmp_path: Path) -> None:
    after = {"parent_chat_id": 159, "input_length": 700}
    lines = [
        bailian(hash_ids=list(range(33)), type="text", turn=2),
        bailian(**after, chat_id=160, timestamp=70.114, hash_ids=[*range(32), *range(90, 102)]),
        bailian(**after, chat_id=161, timestamp=71.114, hash_ids=[*range(16), *range(200, 228)]),
        bailian(**{**after, "input_length": 600}, chat_id=162, timestamp=72, hash_ids=[]),
    ]
    read = read_trace(trace(tmp_path, *lines))
    assert [r.id for r in read.requests] == ["159", "160", "161", "162"]
    assert read.requests[1].arrival_s == pytest.approx(9.0)
    # The second's blocks go on as the first's; the third's part after 16; the fourth is shorter than what it names.
    assert [r.continues for r in read.requests] == [None, "159", None, None]
    assert read.requests[2].prefix == (SharedPrefix("block 0", 256),)
    named, others = read.doubts
    assert "3 requests name a parent_chat_id" in named
    assert others == "trace.jsonl: not heeded of its lines: type, turn"


_PATHS = st.lists(st.integers(0, 2), max_size=5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(_PATHS, st.integers(0, 2)), min_size=2, max_size=6))
def test_merged_blocks_say_what_one_prefix_a_block_says(paths: list[tuple[list[int], int]]) -> None:
    """An id here is the whole path of a tree, as a hash of all before it is; prompts may end inside the last block."""
    rows = [[int("1" + "".join(map(str, path[: end + 1]))) for end in range(len(path))] for path, _ in paths]
    prompts = [max(1, 3 * len(row) - cut) for row, (_, cut) in zip(rows, paths, strict=True)]

    def common(shared: list[list[SharedPrefix]]) -> list[int]:
        asked = [Request(str(i), 0.0, prompts[i], 2, prefix=tuple(each)) for i, each in enumerate(shared)]
        texts = [
            [
                next(span.owner for span in spans(asked)[one.id] if token < span.end)
                for token in range(one.prompt_tokens)
            ]
            for one in asked
        ]
        return [sum(a == b for a, b in zip(one, other, strict=False)) for one, other in product(texts, repeat=2)]

    one_a_block = [
        [SharedPrefix(str(block), min(3 * end, prompt)) for end, block in enumerate(row, start=1)]
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    merged = prefixes(rows, prompts, 3)
    assert common(merged) == common(one_a_block)
    assert all(len(few) <= len(many) for few, many in zip(merged, one_a_block, strict=True))


def ours(prompt: int, **keys: object) -> str:
    return json.dumps({"timestamp_s": 1, "prompt_tokens": prompt, "output_tokens": 5, **keys})


def test_prefixes_and_conversations_of_a_trace(tmp_path: Path) -> None:
    system = {"group": "system", "tokens": 100}
    lines = [
        ours(120, prefix=system, id=7),
        ours(300, prefix=[system, {"group": 3, "tokens": 200}], continues=None),
        ours(200, continues=7),
        ours(400, continues="3", prefix=[]),
    ]
    read = read_trace(trace(tmp_path, *lines))
    assert [(r.id, r.continues) for r in read.requests] == [("7", None), ("2", None), ("3", "7"), ("4", "3")]
    assert read.requests[1].prefix == (SharedPrefix("system", 100), SharedPrefix("3", 200))
    assert read.doubts == ()
    assert read_trace(trace(tmp_path, *lines), 3).requests == read.requests[:3]


def test_the_first_of_those_taken_arrives_at_0(tmp_path: Path) -> None:
    file = trace(tmp_path, ours(5, timestamp_s=30), ours(5, timestamp_s=40), ours(5))
    assert [request.arrival_s for request in read_trace(file, 2).requests] == [0.0, 10.0]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (ours(50, continues="x"), "3: continues: x is not the id of a line before"),
        (ours(50, continues="3"), "3: continues: 3 is not the id of a line before"),
        (ours(50, timestamp_s=0, continues="2"), "3: continues: 2 arrives later"),
        (ours(20, continues="2"), "3: request 3: its prompt of 20 tokens is shorter than the text of 2, 25 tokens"),
        (ours(50, continues=1.5), "3: continues: 1.5 is not a text or a whole number"),
        (ours(50, id=True), "3: id: True is not"),
        (ours(50, id=""), "3: id: '' is not"),
        (ours(50, id="1"), r"3: id: 1 is that of .*:1; allowed: every id once"),
        (ours(50, prefix={"group": "a"}), "3: prefix: found .* allowed: a list of mappings with group and tokens"),
        (ours(50, prefix=["a"]), "3: prefix: found 'a'; allowed"),
        (ours(50, prefix={"group": None, "tokens": 1}), "3: prefix: group: found null"),
        (ours(50, prefix={"group": "a", "tokens": 0}), "3: prefix: tokens: 0 is not a whole number of 1 or more"),
        (ours(50, prefix={"group": "a", "tokens": 51}), "3: request 3: a prefix of 51 tokens must be part of its"),
        (ours(50, prefix=[{"group": "a", "tokens": 9}] * 2), "3: request 3: a prefix of 9 tokens must .* longer than"),
        (MOONCAKE[0], "3: has timestamp, input_length, .*, lines before have timestamp_s, .*; allowed: one"),
        (ours(50, timestamp_s=1e300), "3: timestamp_s: 1e.300 is not a number"),
    ],
)  # fmt: skip
def test_a_line_that_cannot_share_what_it_says_is_named(tmp_path: Path, line: str, words: str) -> None:
    file = trace(tmp_path, ours(30), ours(20), line, ours(1))
    with pytest.raises(SpecError, match=words) as caught:
        read_trace(file)
    assert str(caught.value).startswith(f"{file}:3: ")


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"hash_ids": list(range(34))}, "hash_ids: 34 for a prompt of 521 tokens; allowed: at most 33, one a block"),
        ({"hash_ids": ["a"]}, "hash_ids: must be a list of whole numbers"),
        ({"hash_ids": 3}, "hash_ids: must be a list"),
        ({"hash_ids": [1], "prefix": {"group": "a", "tokens": 3}}, "prefix: found beside hash_ids"),
    ],
)  # fmt: skip
def test_blocks_that_are_no_blocks_are_refused(tmp_path: Path, keys: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_trace(trace(tmp_path, bailian(**keys)))


def test_a_trace_is_doubted_beside_every_figure(tmp_path: Path) -> None:
    file = trace(tmp_path, '{"timestamp": 0, "input_length": 60, "output_length": 2, "hash_ids": [4]}')
    load = {"kind": "trace", "file": str(file)}
    space = SearchSpace.from_mapping({**SearchSpace.load("tiny").resolved(), "workload": load})
    doubts = caveats(resolve(space), {}).doubts
    assert any("hash_ids are of prompts" in doubt for doubt in doubts), doubts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["not JSON"]),
        ("[1]", ["JSON object"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5}', ["output_tokens: missing"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5, "output_token": 5}', ["output_tokens: missing", "'output_token'"]),
        ('{"timestamp": 1, "input_length": 5}', ["output_length: missing"]),
        ('{"timestamp_s": "1", "prompt_tokens": 5, "output_tokens": 5}', ["timestamp_s", "'1'"]),
        ('{"timestamp_s": NaN, "prompt_tokens": 5, "output_tokens": 5}', ["timestamp_s", "nan"]),
        ('{"timestamp_s": 1, "prompt_tokens": 0, "output_tokens": 5}', ["prompt_tokens", "1 or more"]),
        ('{"timestamp_s": 1, "prompt_tokens": 5, "output_tokens": 2.5}', ["output_tokens", "2.5"]),
        ('{"timestamp_s": 1, "prompt_tokens": true, "output_tokens": 2}', ["prompt_tokens", "True"]),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, words: list[str]) -> None:
    good = '{"timestamp_s": 1, "prompt_tokens": 5, "output_tokens": 5}'
    file = trace(tmp_path, good, good, line)
    with pytest.raises(SpecError) as caught:
        read_trace(file)
    assert f"{file}:3: " in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_an_unreadable_or_empty_trace_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    for file in (tmp_path / "absent", tmp_path, binary, trace(tmp_path, "", "  ")):
        with pytest.raises(SpecError, match=str(file)):
            read_trace(file)
