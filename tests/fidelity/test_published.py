"""The published results: every source is split by rule, and every result is used or its reason is told."""

from __future__ import annotations

import hashlib

import yaml

from partitune.fidelity.pairs import unused_results
from partitune.fidelity.set_ups import shipped

SOURCES = yaml.safe_load(shipped("published_sources.yaml"))


def test_sources_are_split_by_their_rule() -> None:
    """Used already, or by the digest of its link: nobody chose a side after seeing an error."""
    for source in SOURCES:
        drawn = hashlib.sha256(source["link"].encode()).hexdigest()[0] in "01"
        assert source["part"] == ("fit" if "constant" in source or drawn else "held_out"), source["name"]


def test_every_result_names_a_source_that_was_split_and_is_used_or_not() -> None:
    """56 results of a survey, p01 to p56, and those found since, s01 and on."""
    pairs = yaml.safe_load(shipped("published_pairs.yaml"))["pairs"]
    unused = yaml.safe_load(shipped("published_unused.yaml"))
    names = [source["name"] for source in SOURCES]
    assert len(names) == len(set(names))
    assert {entry["source"] for entry in (*pairs, *unused)} == set(names)
    used = {number for pair in pairs for number in pair["results"]}
    assert not used & set(unused_results())
    assert {number for number in used | set(unused_results()) if number[0] == "p"} == {f"p{n:02}" for n in range(1, 57)}
    assert all(reason for reason in unused_results().values())
