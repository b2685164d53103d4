"""Version texts as registries and nightlies write them."""

from __future__ import annotations

import pytest

from partitune.engines.registry import ENGINES, engine
from partitune.engines.versions import parse_version
from partitune.errors import SpecError
from partitune.fidelity.set_ups import shipped_rows
from partitune.hardware.gpus import gpu
from partitune.models.reader import load_architecture


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
        ("0.10.1.1", (0, 10, 1)),
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
        ("vllm", "0.19.0", ""),
        ("vllm", "0.34.0", "newer than the rules known here; those of 0.33.0 are used"),
        ("vllm", "1.0.0", "newer"),
        ("vllm", "0.11.0", "older than the rules known here; those of 0.19.0 are used"),
        ("sglang", "0.6.0", "newer"),
    ],
)
def test_rules_of_another_release_are_noted(name: str, version: str, note: str) -> None:
    notes = engine(name).versions_read.notes(parse_version(version))
    assert bool(notes) == bool(note)
    assert note in "".join(notes)
    assert set(notes) <= set(engine(name).notes(version))


@pytest.mark.parametrize(
    ("name", "version", "note"),
    [
        ("vllm", "0.24.0", ""),  # of the kernel tables
        ("vllm", "0.19.0", ""),
        (
            "vllm",
            "0.8.0",
            "no times of vLLM 0.8.0 were measured: its kernels are taken to be as fast as those of 0.12.0",
        ),
        ("vllm", "0.40.0", "no times of vLLM 0.40.0 were measured"),
        ("sglang", "0.5.14", ""),
        ("sglang", "0.5.23", "no times of SGLang 0.5.23 were measured"),
    ],
)
def test_times_of_another_release_are_noted(name: str, version: str, note: str) -> None:
    notes = "".join(each for each in engine(name).notes(version) if "times of" in each)
    assert bool(notes) == bool(note)
    assert note in notes


def test_the_measured_range_is_that_of_the_data() -> None:
    """Whole servers and kernel tables bound it; a nightly has no place in it."""
    for each in ENGINES.values():
        releases = {row["version"] for row in shipped_rows("whole_servers.csv") if row["engine"] == each.name}
        servers = [parse_version(release) for release in releases if not release.startswith("nightly")]
        assert each.measured is not None
        assert each.versions_measured is not None
        tables = parse_version(each.measured.tables.release)
        assert each.versions_measured[1:] == (min(servers), max(*servers, tables))


@pytest.mark.parametrize(
    ("model", "card", "version", "told"),
    [
        ("kimi-k3", "B300", "0.27.1", ("too slow", "2,263 ms")),
        ("kimi-k3", "B300", "0.33.0", ("too slow",)),
        ("kimi-k3", "H200", "0.29.0", ("2,263 ms",)),
        ("kimi-k3", "H200", "0.33.0", ()),  # Marlin there
        ("deepseek-v4-flash", "B200", "0.33.0", ("too slow",)),
        ("gpt-oss-120b", "B200", "0.33.0", ()),  # keeps 16-bit activations
        ("qwen3-32b", "B200", "0.33.0", ()),
    ],
)
def test_what_is_known_of_a_releases_speed_is_told(model: str, card: str, version: str, told: tuple[str, ...]) -> None:
    """vLLM 0.27 to 0.33 oracle/mxfp4.py _get_priority_backends; blog of 2026-09-13, 8K/1K at concurrency 1."""
    notes = engine("vllm").model_notes(load_architecture(model), gpu(card), version)
    assert len(notes) == len(told)
    assert all(words in note for words, note in zip(told, notes, strict=True))
    assert engine("sglang").model_notes(load_architecture(model), gpu(card), "0.5.23") == ()
