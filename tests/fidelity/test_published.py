"""The published results: every source is split by rule."""

from __future__ import annotations

import hashlib

import yaml

from partitune.fidelity.set_ups import shipped

SOURCES = yaml.safe_load(shipped("published_sources.yaml"))


def test_sources_are_split_by_their_rule() -> None:
    """Used already, or by the digest of its link: nobody chose a side after seeing an error."""
    for source in SOURCES:
        drawn = hashlib.sha256(source["link"].encode()).hexdigest()[0] in "01"
        assert source["part"] == ("fit" if "constant" in source or drawn else "held_out"), source["name"]


def test_every_pair_names_a_source_that_was_split() -> None:
    names = [source["name"] for source in SOURCES]
    assert len(names) == len(set(names))
    assert {pair["source"] for pair in yaml.safe_load(shipped("published_pairs.yaml"))["pairs"]} <= set(names)
