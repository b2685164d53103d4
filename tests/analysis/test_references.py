"""Item 1: what a deployment is held against: the default partition at the same flags, the engine's default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune.analysis.final import DecisionRules
from partitune.analysis.references import references
from partitune.analysis.summary import Summary, remarks
from partitune.candidate import Candidate, Caveats, Objective, Outcome, Result
from partitune.cli import main
from partitune.store import Store, StudyTerms
from partitune.store.status import stored_summary
from tests.scripted import measurement
from tests.store_examples import record

METRIC = "output_throughput_tok_s"
SMALL = ("--set", "max_num_batched_tokens=512")
DEFAULT = "11,11,12,12,12,12,12,11"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 0
    return capsys.readouterr().out


def test_a_partition_is_held_against_the_default_partition_at_its_own_flags_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The simulator itself says what the default partition gives at these flags."""
    words = ("explain", "kimi-k3-pp8-tp2", *SMALL)
    alone = json.loads(said(capsys, *words, "--json"))
    ours = ("--partition", "7,11,11,11,11,11,15,16")
    data = json.loads(said(capsys, *words, *ours, "--json"))
    assert data["same_flags"]["metrics"] == alone["metrics"]
    assert data["same_flags"]["partition"] == [11, 11, 12, 12, 12, 12, 12, 11]
    assert alone["same_flags"] is None
    assert alone["default"] == data["default"]
    this, same, default = (one["metrics"][METRIC] for one in (data, data["same_flags"], data["default"]))
    assert default < this < same
    text = said(capsys, *words, *ours)
    first = text.index(f"against the default partition {DEFAULT} at these flags (max_num_batched_tokens=512):")
    second = text.index(f"against the engine's default {DEFAULT} at its starting flags (max_num_batched_tokens=16384):")
    assert first < second
    assert f"{100 * (1 - this / same):.1f} % worse" in text[first:second]
    assert f"{100 * (this / default - 1):.1f} % better" in text[second:]
    assert f"flags {100 * (same / default - 1):+.1f} %, then the partition {100 * (this / same - 1):+.1f} %" in text


def test_without_other_flags_both_references_are_one(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("explain", "kimi-k3-pp8-tp2", "--partition", "7,11,11,11,11,11,15,16")
    data = json.loads(said(capsys, *words, "--json"))
    assert data["same_flags"] == data["default"]
    assert said(capsys, *words).count("against the ") == 1


def test_solve_says_that_its_rows_share_their_flags_and_what_the_default_has_at_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    started = json.loads(said(capsys, "solve", "kimi-k3-pp8-tp2", "--json"))
    changed = json.loads(said(capsys, "solve", "kimi-k3-pp8-tp2", *SMALL, "--json"))
    assert started["default_at_starting_flags"] is None
    assert changed["default_at_starting_flags"] == started["default"]
    text = said(capsys, "solve", "kimi-k3-pp8-tp2", *SMALL)
    assert "all rows are at the same flags (max_num_batched_tokens=512)" in text
    assert f"the engine's default {DEFAULT} at its starting flags: slowest stage" in text


def ended(partition: tuple[int, ...], chunk: int, throughput: float, layout: str | None = None) -> Result:
    flags = {"max_num_batched_tokens": chunk}
    return Result(Candidate(partition, flags, layout), Outcome.OK, "", measurement(throughput))


def studied(folder: Path, *results: tuple[str, Result]) -> Summary:
    with Store.open(folder / "results.db") as store:
        store.create_study(StudyTerms("s", {}, "vllm", "0.33.0", "simulator", 0, Caveats().to_json()))
        for number, (origin, result) in enumerate(results):
            record(store, "s", number, result, origin)
        return stored_summary(store, "s", (Objective(METRIC, "maximize"),), DecisionRules())


def test_a_stored_winner_is_held_against_the_stored_default_partition_at_its_flags(tmp_path: Path) -> None:
    trials = (
        ("default:default", ended((4, 4), 2048, 100.0)),
        ("exact:front-0", ended((3, 5), 512, 110.0)),
        ("closing:default", ended((4, 4), 512, 88.0)),
    )
    found = studied(tmp_path, *trials)
    assert found.best is not None
    assert found.to_json()["same_flags"]["trial"] == 2
    against, worth = found.against_same_flags(found.best)
    name = "against the default partition 4,4 at these flags (max_num_batched_tokens=512) (trial 2): "
    assert against.startswith(f"{name}{METRIC} better by 25.0 %")
    assert worth == f"{METRIC}: flags -12.0 %, then the partition +25.0 %, together +10.0 % (plus is better)"
    written = remarks(found, found.best)
    assert written.index(against) < next(i for i, line in enumerate(written) if "the engine's default 4,4 at" in line)


def test_a_default_partition_that_was_not_tried_is_said_with_its_command(tmp_path: Path) -> None:
    found = studied(
        tmp_path, ("default:default", ended((4, 4), 2048, 100.0)), ("exact:front-0", ended((3, 5), 512, 110.0))
    )
    assert found.best is not None
    assert found.to_json()["same_flags"] is None
    (line,) = found.against_same_flags(found.best)
    assert "was not tried: partitune explain SPACE --set max_num_batched_tokens=512 " in line


def test_a_winner_with_the_default_partition_differs_by_its_flags_alone(tmp_path: Path) -> None:
    found = studied(
        tmp_path, ("default:default", ended((4, 4), 2048, 100.0)), ("sampler:default", ended((4, 4), 512, 110.0))
    )
    assert found.best is not None
    assert found.against_same_flags(found.best) == [
        "this is the default partition: it differs from the engine's default by its flags alone"
    ]


def test_a_winner_with_another_layouts_default_partition_differs_by_more_than_its_flags(tmp_path: Path) -> None:
    found = studied(
        tmp_path,
        ("default:default", ended((8,), 2048, 100.0, "tp4-pp1")),
        ("exact:front-0", ended((8,), 2048, 120.0, "tp2-pp1-dp2")),
    )
    assert found.best is not None
    (line,) = found.against_same_flags(found.best)
    assert line.endswith(
        "it differs from the engine's default by its layout, whose default partition it has, and its flags"
    )


def test_on_another_layout_the_default_partition_is_that_layouts(tmp_path: Path) -> None:
    found = studied(
        tmp_path,
        ("default:default", ended((4, 4), 2048, 100.0, "tp2-pp2")),
        ("exact:front-0", ended((1, 2, 2, 3), 2048, 110.0, "tp1-pp4")),
        ("closing:default", ended((2, 2, 2, 2), 2048, 105.0, "tp1-pp4")),
    )
    assert found.best is not None
    assert found.to_json()["same_flags"]["partition"] == [2, 2, 2, 2]
    against, worth = found.against_same_flags(found.best)
    assert "the default partition 2,2,2,2 at these flags (max_num_batched_tokens=2048, layout tp1-pp4)" in against
    assert "flags and layout +5.0 %, then the partition +4.8 %" in worth


def test_references_are_a_sequence_in_reading_order() -> None:
    ours, same, default = (ended(*one) for one in (((3, 5), 512, 1.0), ((4, 4), 512, 1.0), ((4, 4), 2048, 1.0)))
    listed = references(ours.candidate, same, default, {})
    assert [reference.result for reference in listed] == [same, default]
    assert references(default.candidate, None, default, {}) == ()
