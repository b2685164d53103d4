"""Version texts as registries and nightlies write them."""

from __future__ import annotations

import pytest

from partitune.engines.registry import engine
from partitune.engines.versions import parse_version
from partitune.errors import SpecError


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("0.33.0", (0, 33, 0)),
        ("0.33", (0, 33, 0)),
        ("v0.27.1", (0, 27, 1)),
        ("0.26.1rc", (0, 26, 1)),
        ("0.26.1rc1.dev693+g7f7a32cfe", (0, 26, 1)),
        ("0.25.2.dev0+g752a3a504.d20260720", (0, 25, 2)),
        ("0.5.5.post3", (0, 5, 5)),
        ("0.33.0+cu130", (0, 33, 0)),
    ],
)
def test_parsed(text: str, release: tuple[int, int, int]) -> None:
    assert parse_version(text) == release


@pytest.mark.parametrize("text", ["", "latest", "33", "0.33.0 ", "0.33.0;", "0,33,0", "٠.33", "0.33.0.1.2", "9" * 99])
def test_malformed(text: str) -> None:
    with pytest.raises(SpecError, match=r"engine.version: .* is not a version"):
        parse_version(text)


@pytest.mark.parametrize(
    ("name", "version", "note"),
    [
        ("vllm", "0.33.2", ""),
        ("vllm", "0.34.0", "newer than the rules known here; those of 0.33.0 are used"),
        ("vllm", "1.0.0", "newer"),
        ("vllm", "0.11.0", "older than the rules known here; those of 0.19.0 are used"),
        ("sglang", "0.6.0", "newer"),
    ],
)
def test_notes(name: str, version: str, note: str) -> None:
    notes = engine(name).notes(version)
    assert bool(notes) == bool(note)
    assert note in "".join(notes)
