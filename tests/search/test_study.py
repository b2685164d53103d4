"""One study from start to end, in this process."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.candidate import Outcome, Result, Submission
from partitune.errors import ClusterError, SpecError, StoreError
from partitune.search.budget import Progress
from partitune.search.events import Unwatched, Watcher
from partitune.search.study import StudyOrder
from partitune.search.study import run as searching
from partitune.spec.catalog import Kind, list_catalog
from partitune.spec.overrides import with_settings
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import Store, StudyState

SHIPPED = [entry.name for entry in list_catalog(Kind.SEARCH_SPACE, project=Path("/nonexistent"))]


def order(
    space: str,
    folder: Path,
    trials: int,
    study: str | None = None,
    pool: str = "local",
    ray_address: str | None = None,
) -> StudyOrder:
    spec = with_settings(SearchSpace.load(space), {"budget.trials": trials})
    database = str(folder / "results.db")
    return StudyOrder(spec, Runner.load("simulator"), database, space if study is None else study, pool, ray_address)


def run(ordered: StudyOrder, watcher: Watcher | None = None) -> Progress:
    with searching(ordered, watcher or Unwatched()) as (_, progress):
        return progress


@pytest.mark.parametrize("space", SHIPPED)
def test_every_shipped_space_runs_for_sixteen_candidates(space: str, tmp_path: Path) -> None:
    progress = run(order(space, tmp_path, 16))
    assert progress.finished == 16
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        trials = store.trials(space)
        assert store.study(space).state is StudyState.FINISHED
    assert [trial.number for trial in trials] == [*range(16)]
    assert trials[0].origin == "default:default"
    for trial in trials:
        assert trial.result.outcome in (Outcome.OK, Outcome.INFEASIBLE), trial.result.reason
        assert trial.submission.origin is not None  # what made it is a word of the closed set
        assert trial.submission.label == trial.origin
    assert trials[0].result.outcome is Outcome.OK


def test_a_watcher_that_stops_leaves_an_interrupted_study_that_goes_on(tmp_path: Path) -> None:
    class Stop(Unwatched):
        def finished(self, progress: Progress, number: int, submission: Submission, result: Result) -> None:
            if number == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(order("tiny", tmp_path, 9), Stop())
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        assert store.study("tiny").state is StudyState.INTERRUPTED
        assert len(store.trials("tiny")) == 4
    assert run(order("tiny", tmp_path, 9)).finished == 9
    run(order("tiny", tmp_path, 9, study="whole"))
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        both = [[(t.origin, t.result.candidate) for t in store.trials(name)] for name in ("tiny", "whole")]
    assert both[0] == both[1]


def test_a_space_with_nothing_left_ends_before_its_budget(tmp_path: Path) -> None:
    progress = run(order("tiny", tmp_path, 500))
    assert progress.stopped == "nothing new left to try in this space"
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        digests = [trial.result.candidate.digest for trial in store.trials("tiny")]
    assert len(digests) == len(set(digests)) == progress.finished > 12


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"study": "a "}, StoreError, "is not a study name"),
        ({"ray_address": "127.0.0.1:6379"}, SpecError, "--ray-address: found beside --pool local"),
        ({"ray_address": "127.0.0.1:1", "pool": "ray"}, ClusterError, "Ray at 127.0.0.1:1 cannot be used"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_written(
    changes: dict[str, str], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        run(order("tiny", tmp_path, 2, **changes))
    assert list(tmp_path.iterdir()) == []


def test_another_seed_is_another_study(tmp_path: Path) -> None:
    run(order("tiny", tmp_path, 1))
    other = order("tiny", tmp_path, 1)
    changed = StudyOrder(with_settings(other.spec, {"random_seed": 1}), other.runner, other.database, "tiny", "local")
    with pytest.raises(StoreError, match="random_seed: 0 -> 1"):
        run(changed)
