"""What goes in comes out: studies, trials, resuming, duplicates."""

from __future__ import annotations

import dataclasses
import math
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitune.candidate import Candidate, Outcome, Result
from partitune.errors import StoreError
from partitune.store import SpecChanged, Store, StudyState, StudyTerms
from partitune.version import __version__
from tests.store_examples import SPEC, again, failed, ok, record, stage, start
from tests.strategies import results


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "results.db") as opened:
        yield opened


@given(st.lists(results, max_size=3))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_any_result_comes_back_equal(store: Store, given_results: list[Result]) -> None:
    study = start(store, store.unique_study_name("any"))
    for number, result in enumerate(given_results):
        record(store, study, number, result, "sampler:1")
    back = store.trials(study)
    assert [trial.result for trial in back] == given_results
    assert [trial.result.candidate.digest for trial in back] == [result.candidate.digest for result in given_results]


def test_a_trial_carries_what_a_report_needs(store: Store) -> None:
    start(store)
    record(store, "k3", 4, ok(), "exact:front-0")
    (trial,) = store.trials("k3")
    assert (trial.study, trial.number, trial.origin) == ("k3", 4, "exact:front-0")
    assert (trial.finished_at - trial.started_at).total_seconds() == 0.75
    assert trial.result.measurement is not None
    assert trial.result.measurement.stages == (stage(0, 47), stage(1, 46))


def test_plan_digest_is_of_the_partition_alone(store: Store) -> None:
    start(store)
    for number, result in enumerate([ok(knob=1), ok(knob=2), ok((46, 47))]):
        record(store, "k3", number, result, "sampler")
    one, other_knob, other_partition = [trial.plan_digest for trial in store.trials("k3")]
    assert one == other_knob != other_partition
    assert one == "cdd85931e38b"  # printf 47,46 | sha256sum


def test_trials_are_plain_to_sqlite_users(store: Store, tmp_path: Path) -> None:
    start(store)
    record(store, "k3", 0, ok(seqs=64), "default")
    query = """SELECT s.name, t.partition, json_extract(t.knobs, '$.seqs'), json_extract(t.metrics, '$.ttft_p99_ms'),
                      t.outcome, sum(g.layers) FROM partitune_trials t JOIN partitune_studies s ON s.id = t.study_id
               JOIN partitune_stages g ON g.trial_id = t.id GROUP BY t.id"""
    connection = sqlite3.connect(tmp_path / "results.db")
    assert connection.execute(query).fetchall() == [("k3", "47,46", 64, 87.25, "ok", 93)]
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_recording_is_idempotent_and_never_overwrites(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    record(store, "k3", 0, ok(), "default")
    with pytest.raises(StoreError, match="trial 0 of study k3 is already stored with another result"):
        record(store, "k3", 0, failed(), "default")
    assert [trial.result for trial in store.trials("k3")] == [ok()]


def test_a_reason_with_bytes_that_are_no_text_is_kept_as_escapes(store: Store) -> None:
    start(store)
    result = failed(reason="log: \udcff\0 end")
    record(store, "k3", 0, result, "sampler")
    record(store, "k3", 0, result, "sampler")
    assert store.trials("k3")[0].result.reason == r"log: \udcff\x00 end"


def replaced(**changes: object) -> Result:
    """An ok result whose measurement has other fields."""
    measurement = ok().measurement
    assert measurement is not None
    return dataclasses.replace(ok(), measurement=dataclasses.replace(measurement, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (ok(metrics={"ttft_p99_ms": math.nan}), "measurement.metrics.ttft_p99_ms is nan"),
        (ok(metrics={"a": 1.0, "b": -math.inf}), "measurement.metrics.b is -inf"),
        (replaced(constraints={"ttft": math.nan}), "measurement.constraints.ttft is nan"),
        (
            replaced(stages=(dataclasses.replace(stage(0, 93), wait_s=math.inf),)),
            r"measurement.stages\[0\].wait_s is inf",
        ),
        (replaced(stages=(stage(0, 47), stage(0, 46))), "names a stage twice"),
        (replaced(kv_blocks=2**63), "measurement.kv_blocks is 9223372036854775808"),
        (dataclasses.replace(ok(), constraints={"memory_gib_over": math.inf}), "constraints.memory_gib_over is inf"),
        (dataclasses.replace(ok(), duration_s=math.nan), "duration_s is nan"),
        (dataclasses.replace(ok(), duration_s=1e300), "duration_s is 1e\\+300"),
        (dataclasses.replace(ok(), measurement=None), "ok without a measurement"),
        (dataclasses.replace(failed(), reason=""), "exactly ok has none"),
        (dataclasses.replace(ok(), candidate=Candidate(())), r"the partition is \[\]"),
        (dataclasses.replace(ok(), candidate=Candidate((94, -1))), r"the partition is \[94, -1\]"),
        (dataclasses.replace(ok(), candidate=Candidate((93,), {"x": math.nan})), "candidate.flags.x is nan"),
        (dataclasses.replace(ok(), candidate=Candidate((93,), {"x": object()})), "candidate.flags.x is a object"),  # type: ignore[dict-item]
    ],
)
def test_what_cannot_be_read_back_unchanged_is_refused_whole(store: Store, result: Result, names: str) -> None:
    start(store)
    with pytest.raises(StoreError, match=names):
        record(store, "k3", 0, result, "sampler")
    record(store, "k3", 0, ok(), "sampler")
    assert [trial.result for trial in store.trials("k3")] == [ok()]


def test_read_only_views_of_mappings_are_stored(store: Store) -> None:
    start(store)
    result = dataclasses.replace(ok(), candidate=Candidate((93,), MappingProxyType({"x": 1})))
    record(store, "k3", 0, result, "seed")
    assert store.trials("k3")[0].result == result


def test_a_layout_is_stored_among_the_knobs_as_ever(store: Store, tmp_path: Path) -> None:
    start(store)
    result = dataclasses.replace(ok(), candidate=Candidate((10, 8, 8, 10), {"x": 1}, "tp1-pp4"))
    record(store, "k3", 0, result, "seed")
    assert store.trials("k3")[0].result == result
    connection = sqlite3.connect(tmp_path / "results.db")
    assert connection.execute("SELECT knobs FROM partitune_trials").fetchall() == [('{"layout":"tp1-pp4","x":1}',)]
    connection.close()


def test_a_study_keeps_its_spec_and_versions(store: Store) -> None:
    store.create_study(StudyTerms("k3", SPEC, "sglang", "0.5.23", "two-nodes", 11, None))
    created = store.study("k3")
    assert created == store.studies()[0]
    assert created.spec == SPEC
    assert (created.engine, created.engine_version, created.runner, created.random_seed) == (
        "sglang",
        "0.5.23",
        "two-nodes",
        11,
    )
    assert (created.partitune_version, created.state, created.finished_at) == (__version__, StudyState.RUNNING, None)
    store.finish("k3", StudyState.FINISHED)
    finished = store.study("k3")
    assert finished.state is StudyState.FINISHED
    assert finished.finished_at is not None
    assert finished.finished_at >= created.created_at


def test_studies_come_oldest_first_and_names_are_unique(store: Store) -> None:
    for name in ("b", "a", "b-2"):
        start(store, name)
    assert [study.name for study in store.studies()] == ["b", "a", "b-2"]
    assert [store.unique_study_name(base) for base in ("c", "a", "b")] == ["c", "a-2", "b-3"]
    with pytest.raises(StoreError, match=r"the study b exists.*such as b-3"):
        start(store, "b")


@pytest.mark.parametrize("name", ["", " k3", "k3\n", "k\0", "\udcff"])
def test_a_study_name_is_printable(store: Store, name: str) -> None:
    with pytest.raises(StoreError, match="is not a study name"):
        start(store, name)


def test_an_unknown_study_is_answered_with_the_nearest_name(store: Store) -> None:
    with pytest.raises(StoreError, match=r"no study k3. The database holds no study yet"):
        store.study("k3")
    start(store, "kimi-k3-pp8")
    with pytest.raises(StoreError, match=r"no study kimi-k3-p8. Did you mean kimi-k3-pp8?"):
        store.trials("kimi-k3-p8")
    with pytest.raises(StoreError, match="no study kimi-k3-p8"):
        record(store, "kimi-k3-p8", 0, ok(), "seed")


def test_resume_continues_under_the_same_spec(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    store.finish("k3", StudyState.INTERRUPTED)
    same = {
        "knobs": [{"values": (64, 128), "name": "max_num_seqs"}],
        "parallel": {"tp": 8, "pp": 2},
        "model": "kimi-k3",
    }
    assert again(store, same) == []
    resumed = store.study("k3")
    assert (resumed.state, resumed.finished_at) == (StudyState.RUNNING, None)
    assert resumed.random_seed == 7
    assert len(store.trials("k3")) == 1


@pytest.mark.parametrize(
    ("changed", "names"),
    [
        (SPEC | {"parallel": {"pp": 4, "tp": 8}}, "parallel.pp: 2 -> 4"),
        (SPEC | {"parallel": {"pp": 2}}, r"parallel.tp: 8 -> \(absent\)"),
        (SPEC | {"slo": {"ttft_p99_ms": 200}}, r"slo: \(absent\) -> {'ttft_p99_ms': 200}"),
        (SPEC | {"knobs": [{"name": "max_num_seqs", "values": [64, 256]}]}, r"knobs\[0\].values\[1\]: 128 -> 256"),
        (SPEC | {"knobs": []}, r"knobs: \[{'name': 'max_num_seqs', 'values': \[64, 128\]}\] -> \[\]"),
        (SPEC | {"parallel": {"pp": 2, "tp": True}}, "parallel.tp: 8 -> True"),
    ],
)
def test_resume_under_another_spec_names_the_changed_keys(store: Store, changed: dict[str, object], names: str) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    with pytest.raises(StoreError, match=rf"study k3 was started with another spec:\n  {names}\nUndo"):
        again(store, changed)


def test_resume_refuses_another_runner(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    with pytest.raises(StoreError, match="\n  runner: 'simulator' -> 'vllm-2node'\n"):
        again(store, runner="vllm-2node")


def test_resume_lets_differ_what_does_not_change_a_trial(store: Store) -> None:
    start(store)
    again(store, SPEC | {"budget": 10})
    record(store, "k3", 0, ok(), "default")
    assert again(store, SPEC | {"budget": 20}, may_differ=["budget"]) == []
    assert store.study("k3").spec["budget"] == 20  # the newest one stands
    with pytest.raises(StoreError, match="budget: 20 -> 30"):
        again(store, SPEC | {"budget": 30})


def test_resume_takes_the_changes_that_were_asked_for_and_no_others(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    wider = SPEC | {"knobs": [{"name": "max_num_seqs", "values": [64, 128, 256]}]}
    with pytest.raises(SpecChanged, match=r":\n  parallel\.pp: 2 -> 4\nUndo") as caught:
        again(store, wider | {"parallel": {"pp": 4, "tp": 8}}, accepted=["knobs"])
    assert caught.value.keys == {"parallel"}
    assert store.study("k3").spec == SPEC
    (change,) = again(store, wider, accepted=["knobs"])
    assert change.startswith("knobs[0].values: [64, 128] -> [64, 128, 256]")
    assert store.study("k3").spec == wider
    assert again(store, wider) == []
    assert (store.set_aside("k3"), len(store.trials("k3"))) == ((), 1)


OTHER = SPEC | {"model": "qwen3-8b"}


def test_trials_of_another_spec_are_set_aside_and_come_back_with_it(store: Store) -> None:
    start(store)
    record(store, "k3", 0, ok(knob=1), "default")
    record(store, "k3", 1, failed(), "sampler")
    changes = again(store, OTHER, runner="two-nodes", anew=True)
    assert changes == ["model: 'kimi-k3' -> 'qwen3-8b'", "runner: 'simulator' -> 'two-nodes'"]
    assert (store.study("k3").spec, store.study("k3").runner) == (OTHER, "two-nodes")
    assert (store.trials("k3"), sum(store.counts("k3").values())) == ([], 0)
    assert (store.set_aside("k3"), store.next_number("k3")) == ((0, 1), 2)
    record(store, "k3", 2, ok(knob=1), "default")
    assert [trial.number for trial in store.trials("k3")] == [2]
    assert (store.trial("k3", 0).result, store.trial("k3", 0).revision) == (ok(knob=1), 0)
    with pytest.raises(StoreError, match="trial 0 of study k3 is already stored"):
        record(store, "k3", 0, failed(), "default")
    wider = SPEC | {"knobs": []}
    again(store, wider, anew=True, accepted=["knobs"])
    assert (store.study("k3").revision, [trial.number for trial in store.trials("k3")]) == (0, [0, 1])
    assert (store.set_aside("k3"), store.next_number("k3")) == ((2,), 3)
    again(store, OTHER | {"model": "tiny"}, anew=True, accepted=["knobs"])
    assert (store.study("k3").revision, store.set_aside("k3")) == (2, (0, 1, 2))
    store.delete_study("k3")
    assert start(store) == "k3"
    assert (store.trials("k3"), store.set_aside("k3")) == ([], ())


def test_the_specs_of_trials_set_aside_are_plain_to_sqlite_users(store: Store, tmp_path: Path) -> None:
    start(store)
    record(store, "k3", 0, ok(), "default")
    again(store, OTHER, anew=True)
    connection = sqlite3.connect(tmp_path / "results.db")
    query = """SELECT t.number, json_extract(r.spec, '$.model'), r.runner FROM partitune_trials t
               JOIN partitune_revisions r ON r.study_id = t.study_id AND r.number = t.revision"""
    assert connection.execute(query).fetchall() == [(0, "kimi-k3", "simulator")]
    connection.close()


def test_a_study_without_trials_takes_any_spec(store: Store) -> None:
    start(store)
    assert again(store, OTHER) == ["model: 'kimi-k3' -> 'qwen3-8b'"]
    record(store, "k3", 0, ok(), "default")
    again(store, SPEC, anew=True)
    again(store, OTHER)
    assert store.study("k3").spec == OTHER  # nothing was tried meanwhile
    assert [trial.number for trial in store.trials("k3")] == [0]


def test_a_spec_with_what_json_cannot_hold_is_refused(store: Store) -> None:
    with pytest.raises(StoreError, match=r"spec.rate is inf"):
        store.create_study(StudyTerms("k", {"rate": math.inf}, "e", "1", "r", 0, None))
    start(store)
    with pytest.raises(StoreError, match=r"spec.path is a PosixPath"):
        again(store, {"path": Path("x")})


def test_counts_name_every_outcome(store: Store) -> None:
    start(store)
    for number, result in enumerate([ok(), failed(), failed(Outcome.INVALID, "1 of 100 completed"), failed()]):
        record(store, "k3", number, result, "sampler")
    assert store.counts("k3") == {
        Outcome.OK: 1,
        Outcome.INFEASIBLE: 0,
        Outcome.FAILED: 2,
        Outcome.INVALID: 1,
        Outcome.LOST: 0,
    }


def test_url_and_path_open_the_same_file(tmp_path: Path) -> None:
    odd = tmp_path / "a b?#%20.db"
    with Store.open(odd) as store:
        start(store)
    with Store.open(tmp_path / "c.db") as store:
        start(store, "by path")
    with Store.open(f"sqlite:///{tmp_path}/c.db", read_only=True) as store:
        assert store.study("by path").name == "by path"
    with Store.open(odd, read_only=True) as store:
        assert store.study("k3").name == "k3"
