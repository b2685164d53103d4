"""Screened candidates and runs of a final: what goes in comes out, nothing twice, nothing damaged believed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitune.analysis.final import FinalRun
from partitune.candidate import Outcome, Result
from partitune.errors import StoreError
from partitune.store import Store
from tests.store_examples import SPEC, again, failed, ok, record, record_repeat, record_screened, start
from tests.strategies import results

FIRST = FinalRun("selection", 1, 3)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


def without_stages(result: Result, repeat: int = 0) -> Result:
    measured = None if result.measurement is None else replace(result.measurement, stages=())
    return replace(result, measurement=measured, repeat=repeat)


@given(st.lists(results, max_size=3, unique_by=lambda one: one.candidate.digest))
@settings(max_examples=25, deadline=None, suppress_health_check=[*HealthCheck])
def test_any_result_comes_back_equal_but_for_its_stages(store: Store, given_results: list[Result]) -> None:
    study = start(store, store.unique_study_name("any"))
    for number, result in enumerate(given_results):
        record_screened(store, study, "sampler:front-0", result)
        record_repeat(store, study, FinalRun("verdict", 2, number), result)
    assert [one.result for one in store.screened(study)] == [without_stages(one) for one in given_results]
    loads = {one.result.repeat for one in store.repeats(study)}
    assert [one.result for one in store.repeats(study)] == [without_stages(one, 12) for one in given_results]
    assert loads <= {12}
    assert store.trials(study) == []


def test_a_run_is_stored_once_and_never_changes(store: Store) -> None:
    start(store)
    for _ in range(2):
        record_repeat(store, "k3", FIRST, ok())
        record_screened(store, "k3", "exact:front-0", ok())
    record_screened(store, "k3", "sampler:front-0", ok())  # the same candidate, proposed otherwise
    with pytest.raises(StoreError, match="selection, round 1, trial 3 of study k3 is already stored with another"):
        record_repeat(store, "k3", FIRST, failed())
    record_repeat(store, "k3", replace(FIRST, phase="verdict"), failed(Outcome.LOST))
    assert [one.run.phase for one in store.repeats("k3")] == ["selection", "verdict"]
    assert [one.origin for one in store.screened("k3")] == ["exact:front-0"]


def test_what_cannot_be_read_back_is_refused(store: Store) -> None:
    start(store)
    with pytest.raises(StoreError, match=r"a simulated candidate of study k3 cannot be stored: .*metrics.ttft is nan"):
        record_screened(store, "k3", "sampler:0", ok(metrics={"ttft": float("nan")}))
    with pytest.raises(StoreError, match=r"round 1, trial 3 of study k3 cannot be stored: .*metrics.ttft is inf"):
        record_repeat(store, "k3", FIRST, ok(metrics={"ttft": float("inf")}))


def test_another_spec_sets_them_aside_with_the_trials_and_the_old_one_brings_them_back(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default:default")
    record_repeat(store, "k3", FIRST, ok())
    record_screened(store, "k3", "exact:front-0", ok())
    again(store, {**SPEC, "model": "other"}, anew=True)
    assert (store.repeats("k3"), store.screened("k3")) == ([], [])
    record_repeat(store, "k3", FIRST, failed())
    again(store, anew=True)
    assert [one.result.outcome for one in store.repeats("k3")] == [Outcome.OK]
    assert len(store.screened("k3")) == 1


def test_a_screen_of_another_spec_is_no_screen_though_nothing_was_launched(store: Store) -> None:
    start(store)
    record_screened(store, "k3", "exact:front-0", ok())
    again(store, {**SPEC, "model": "other"})
    assert store.screened("k3") == []


def test_a_study_goes_with_all_it_holds(store: Store, tmp_path: Path) -> None:
    start(store)
    record_repeat(store, "k3", FIRST, ok())
    record_screened(store, "k3", "exact:front-0", ok())
    store.delete_study("k3")
    connection = sqlite3.connect(tmp_path / "results.db")
    for table in ("screened", "repeats"):
        assert connection.execute(f"SELECT count(*) FROM partitune_{table}").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(
    ("table", "column", "value", "said"),
    [
        ("repeats", "phase", "semifinal", "repeat 1 of study k3, column phase: 'semifinal' is not one of selection"),
        ("repeats", "trial", "first", "column trial: 'first' is not an integer"),
        ("repeats", "finished_at", "yesterday", "column finished_at: 'yesterday' is not a time"),
        ("repeats", "metrics", "{", "column metrics: '{' is not JSON"),
        ("screened", "outcome", "good", "simulated candidate 1 of study k3, column outcome: 'good' is not one of ok"),
        ("screened", "partition", "", "column partition: '' is not a partition"),
        ("screened", "measurement", "[]", r"column measurement: '\[\]' is not a JSON object"),
    ],
)
def test_a_damaged_cell_is_named(store: Store, tmp_path: Path, table: str, column: str, value: str, said: str) -> None:
    start(store)
    record_repeat(store, "k3", FIRST, ok())
    record_screened(store, "k3", "exact:front-0", ok())
    connection = sqlite3.connect(tmp_path / "results.db")
    connection.execute(f"UPDATE partitune_{table} SET {column} = ?", (value,))
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match=f"table partitune_{table}, .*{said}"):
        store.repeats("k3") if table == "repeats" else store.screened("k3")
