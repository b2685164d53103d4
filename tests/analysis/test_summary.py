"""What a study found: one function answers every command."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from partitune.analysis.final import DecisionRules
from partitune.analysis.summary import Summary, remarks, trial_to_export
from partitune.candidate import Candidate, Caveats, Objective, Outcome, Result
from partitune.errors import SpecError
from partitune.store import Store, StudyTerms
from partitune.store.status import stored_summary
from tests.scripted import measurement
from tests.store_examples import record

OBJECTIVES = (Objective("output_throughput_tok_s", "maximize"),)


def summary(folder: Path, *found: tuple[str, Result]) -> Summary:
    with Store.open(folder / "results.db") as store:
        store.create_study(StudyTerms("s", {}, "vllm", "0.33.0", "simulator", 0, Caveats().to_json()))
        for number, (origin, result) in enumerate(found):
            record(store, "s", number, result, origin)
        return stored_summary(store, "s", OBJECTIVES, DecisionRules())


def ok(layers: int, throughput: float) -> Result:
    return Result(Candidate((layers,), {"note": "=1+1"}), Outcome.OK, "", measurement(throughput))


def failed(layers: int, outcome: Outcome, reason: str) -> Result:
    return Result(Candidate((layers,)), outcome, reason)


def test_the_default_is_known_by_its_origin_and_beaten_only_by_more_than_a_tie(tmp_path: Path) -> None:
    tie = summary(tmp_path, ("default:default", ok(1, 100.0)), ("exact:front-0", ok(2, 100.9)))
    assert tie.best_is_default
    assert remarks(tie, trial_to_export(tie, None))[-1].endswith("keep the default")
    (tmp_path / "b").mkdir()
    won = summary(tmp_path / "b", ("default:default", ok(1, 100.0)), ("exact:front-0", ok(2, 102.0)))
    assert won.best is not None
    assert won.best.number == 1
    assert "better by 2.0 %" in remarks(won, won.best)[-1]


def test_a_default_that_cannot_run_is_shown_and_not_compared_with(tmp_path: Path) -> None:
    found = summary(
        tmp_path, ("default:default", failed(1, Outcome.INFEASIBLE, "an illegal cut")), ("exact:front-0", ok(2, 5.0))
    )
    assert found.default is not None
    data = found.to_json()
    assert data["default"]["reason"] == "an illegal cut"
    assert data["best"]["trial"] == 1
    assert "nothing to compare with" in data["verdict"]


def test_only_a_trial_that_ended_ok_can_be_exported(tmp_path: Path) -> None:
    found = summary(tmp_path, ("default:default", failed(1, Outcome.FAILED, "it crashed")))
    with pytest.raises(SpecError, match="nothing to export"):
        trial_to_export(found, None)
    with pytest.raises(SpecError, match=r"--trial 0: ended failed \(it crashed\)"):
        trial_to_export(found, 0)
    with pytest.raises(SpecError, match=r"--trial 7: .* it has 0 to 0"):
        trial_to_export(found, 7)


def test_a_study_without_trials_is_no_fault(tmp_path: Path) -> None:
    found = summary(tmp_path)
    assert found.to_json()["best"] is None
    assert found.counts() == dict.fromkeys(("ok", "infeasible", "failed", "invalid", "lost"), 0)
    assert found.volume() is None
    with pytest.raises(SpecError, match="it has none yet"):
        found.trial(0)


def test_csv_has_every_trial_and_nothing_a_spreadsheet_would_run(tmp_path: Path) -> None:
    found = summary(
        tmp_path, ("default:default", ok(1, 3.0)), ("seed:seed-1", failed(2, Outcome.LOST, '-2 workers, "gone"\n'))
    )
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["outcome"] for row in rows] == ["ok", "lost"]
    assert [row["on_front"] for row in rows] == ["1", "0"]
    assert rows[0]["note"] == "'=1+1"
    assert rows[1]["reason"].startswith("'-2 workers")
    assert float(rows[0]["output_throughput_tok_s"]) == 3.0
    assert rows[1]["output_throughput_tok_s"] == ""
