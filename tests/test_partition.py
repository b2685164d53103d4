"""Partition text: what the engines take silently (field report 15) is refused in words."""

from __future__ import annotations

import json
import pickle
from itertools import groupby

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.partition import Partition, parse_partition


@given(st.lists(st.integers(1, 9999), min_size=1, max_size=64).map(tuple))
def test_what_is_written_is_read_back(partition: tuple[int, ...]) -> None:
    assert parse_partition(Partition(partition).text) == partition
    assert parse_partition(list(partition)) == partition


@given(st.lists(st.integers(1, 40), min_size=1, max_size=16).map(Partition))
def test_ranges_are_those_of_layers_dealt_out_one_by_one(partition: Partition) -> None:
    stage_of_layer = [stage for stage, count in enumerate(partition) for _ in range(count)]
    owned = [
        [layer for layer, _ in layers] for _, layers in groupby(enumerate(stage_of_layer), key=lambda pair: pair[1])
    ]
    assert [list(range(first, end)) for first, end in partition.ranges] == owned


@given(st.lists(st.integers(0, 9), max_size=8).map(tuple))
def test_a_partition_is_the_tuple_it_was_made_from(counts: tuple[int, ...]) -> None:
    partition = Partition(counts)
    assert (partition, hash(partition), json.dumps(partition)) == (counts, hash(counts), json.dumps(counts))
    assert type(pickle.loads(pickle.dumps(partition))) is Partition
    assert [end - first for first, end in partition.ranges] == list(counts)  # a stage without layers has its place


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        ('"10,38"', "quotes"),
        ("'10,38'", "quotes"),
        ("10，38", "full-width"),
        ("10,38 # note", "comment"),
        ("10,38,", "ends with a comma"),
        (",10,38", "starts with a comma"),
        ("10,,38", "two commas"),
        (" 10,38", "white space"),
        ("10, 38", "white space"),
        ("10,38\n", "white space"),
        ("10,38\r", "white space"),
        ("+10,38", "plus sign"),
        ("-1,49", "negative"),
        ("1_0,38", "underscore"),
        ("[10,38]", "brackets"),
        ("10;38", "character ';'"),
        ("1e1,38", "character 'e'"),
        ("٣,45", "character '٣'"),
        ("１０,38", "character '１'"),
        ("\ufeff10,38", "character '\\ufeff'"),
        ("12345,3", "5 digits"),
        ("9" * 5000, "5000 digits"),
    ],
)
def test_text_that_an_engine_would_misread(text: str, because: str) -> None:
    with pytest.raises(SpecError) as refused:
        parse_partition(text, stages=2, layers=48, source="space.yaml:7: partition")
    message = str(refused.value)
    assert message.startswith("space.yaml:7: partition: ")
    assert because in message
    assert len(message) < 300


def test_every_fault_is_named_at_once() -> None:
    with pytest.raises(SpecError) as refused:
        parse_partition("0,94", stages=3, layers=93)
    assert str(refused.value) == (
        "--partition: '0,94': every stage needs at least 1 layer, stage 0 has 0; has 2 entries, the pipeline has 3 "
        "stages; sums to 94, the model has 93 layers: 1 too many"
    )


def test_too_few_layers() -> None:
    with pytest.raises(SpecError, match="sums to 47, the model has 48 layers: 1 too few"):
        parse_partition("10,37", stages=2, layers=48)


@pytest.mark.parametrize("values", [[], [10, True], [10, "38"], [10, 38.0], [10, None], [10, -1], [10, 10**9]])
def test_lists_that_are_no_partition(values: list[object]) -> None:
    with pytest.raises(SpecError, match="--partition"):
        parse_partition(values)
