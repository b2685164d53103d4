"""One study from start to end, in this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from partitune.candidate import Candidate, Origin, Outcome, Result, Submission
from partitune.errors import ClusterError, SpecError, StoreError
from partitune.execution.driver import run as measured
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.planning.resolve import resolve
from partitune.search.budget import Progress
from partitune.search.events import Unwatched, Watcher
from partitune.search.proposers.closing import MOST_CLOSING
from partitune.search.stored_study import explained_summary_of, summary_of
from partitune.search.study import StudyOrder
from partitune.search.study import run as searching
from partitune.spec.catalog import Kind, list_catalog
from partitune.spec.domains import domain_allows
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
    assert 16 <= progress.finished <= 16 + MOST_CLOSING
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        trials = store.trials(space)
        assert store.study(space).state is StudyState.FINISHED
    assert [trial.number for trial in trials] == [*range(progress.finished)]
    assert all(trial.submission.origin == Origin.CLOSING for trial in trials[16:])
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
    resumed = run(order("tiny", tmp_path, 9)).finished
    whole = run(order("tiny", tmp_path, 9, study="whole"))
    assert resumed == whole.finished >= 9  # and what closes it
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


def unequal(folder: Path, **changes: object) -> SearchSpace:
    """Two GPUs of which one is twice as fast, and one request at a time: the sum of the stages counts."""
    plain = {
        "kind": "search_space",
        "name": "unequal",
        "model": "qwen3-8b",
        "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": ["RTX-5090", "RTX-3090"]},
        "parallel": {"tp": 1, "pp": 2},
        "workload": {"kind": "random", "requests": 8, "prompt_tokens": 256, "output_tokens": 64, "concurrency": 1},
        "knobs": {"max_num_batched_tokens": [512, 2048]},
        **changes,
    }
    return SearchSpace.from_mapping(plain, source="unequal")


@pytest.mark.parametrize("space", [*SHIPPED, "unequal"])
def test_item_6_no_last_page_names_a_partition_that_beats_the_winner(space: str, tmp_path: Path) -> None:
    """The other exact answers are plans, and what the closing analysis finds is a trial."""
    ordered = order("tiny" if space == "unequal" else space, tmp_path, 12, study=space)
    if space == "unequal":
        ordered = replace(ordered, spec=unequal(tmp_path))
    run(ordered)
    with Store.open(ordered.database, read_only=True) as store:
        summary = explained_summary_of(store, space)
        first = [(trial.number, trial.origin) for trial in store.trials(space)]
    assert summary.best is not None
    assert summary.distance is not None
    tried = {trial.result.candidate.digest for trial in summary.trials}
    winner = summary.best.result.candidate
    for part in getattr(summary.distance, "parts", {"": summary.distance}).values():
        assert replace(winner, partition=part.best_partition).digest in tried
        if summary.objectives[0].metric == "output_throughput_tok_s" and not hasattr(summary.distance, "parts"):
            assert part.partition_gain <= summary.zone
    assert summary.advice is not None
    knobs = ordered.spec.knobs.flags
    within = [change for change in summary.advice.changes if set(change.flags) <= set(knobs)]
    for change in within:
        assert change.candidate.digest in tried or any(
            not domain_allows(knobs[name], value) for name, value in change.flags.items()
        ), change.text
    problem = resolve(ordered.spec).on(winner.layout)
    assert replace(winner, partition=tuple(problem.default_partition)).digest in tried  # compared at the same flags
    run(ordered)  # a finished study has nothing left to close
    with Store.open(ordered.database, read_only=True) as store:
        assert [(trial.number, trial.origin) for trial in store.trials(space)] == first


def test_item_6_the_issues_own_pair_of_cards(tmp_path: Path) -> None:
    """64 layers over a fast and a slow card: it ended at 45,19 and named 63,1 in its footer."""
    spec = unequal(tmp_path, model="qwen3-32b", config={"weight_bits": 4})
    run(replace(order("tiny", tmp_path, 12, study="unequal"), spec=spec))
    with Store.open(str(tmp_path / "results.db"), read_only=True) as store:
        summary = explained_summary_of(store, "unequal")
    assert summary.best is not None
    assert summary.best.result.candidate.partition == (63, 1)
    simulator = SimulatorDriver(resolve(spec))
    splits = ((63, 1), (45, 19), (32, 32))
    found, old, default = (simulator.measure(Candidate(it)).metrics["output_throughput_tok_s"] for it in splits)
    assert found / old == pytest.approx(1.208, abs=0.005)
    assert found / default == pytest.approx(1.358, abs=0.005)


def test_item_6_a_model_of_37_layers_ends_with_nothing_better_named(tmp_path: Path) -> None:
    cluster, load = {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"}, {"requests": 64, "concurrency": 32}
    workload = {"kind": "random", "prompt_tokens": 400, "output_tokens": 64, **load}
    sizes = {"parallel": {"tp": 1, "pp": 4}, "workload": workload, "config": {"num_hidden_layers": 37}}
    spec = unequal(tmp_path, cluster=cluster, **sizes)
    run(replace(order("tiny", tmp_path, 12, study="unequal"), spec=spec))
    with Store.open(str(tmp_path / "results.db"), read_only=True) as store:
        summary = explained_summary_of(store, "unequal")
    assert summary.advice is not None
    tried = {trial.result.candidate.digest for trial in summary.trials}
    of_space = [change for change in summary.advice.changes if set(change.flags) <= {"max_num_batched_tokens"}]
    assert all(
        change.candidate.digest in tried or change.flags.get("max_num_batched_tokens") not in (None, 512, 2048)
        for change in of_space
    )


def test_item_17_a_model_that_fits_nowhere_is_said_at_trial_0(tmp_path: Path) -> None:
    spec = unequal(tmp_path, model="kimi-k3", cluster={"nodes": 1, "gpus_per_node": 2, "gpu": "RTX-3090"})
    progress = run(replace(order("tiny", tmp_path, 12, study="unequal"), spec=spec))
    assert progress.finished == 1
    assert progress.stopped.startswith("the model fits nowhere in this space: ")
    assert "GiB" in progress.stopped


def test_item_17_a_model_that_fits_under_other_flags_is_searched_on(tmp_path: Path) -> None:
    """At the first utilisation nothing fits, at the second it does."""
    knobs = {"gpu_memory_utilization": [0.3, 0.9]}
    flags = {"name": "vllm", "flags": {"gpu_memory_utilization": 0.3}}
    progress = run(
        replace(order("tiny", tmp_path, 12, study="unequal"), spec=unequal(tmp_path, knobs=knobs, engine=flags))
    )
    assert progress.finished > 3
    assert progress.outcomes[Outcome.OK]


def test_item_6_the_least_sum_is_found_without_a_seed(tmp_path: Path) -> None:
    """Enumerated here by the simulator: one request at a time, so all layers but one belong to the faster GPU."""
    spec = unequal(tmp_path)
    problem = resolve(spec)
    driver = SimulatorDriver(problem)
    metric = "output_throughput_tok_s"
    rates = {
        n: measured(driver, Candidate((n, 36 - n), {"max_num_batched_tokens": 2048})).metric(metric)
        for n in range(1, 36)
    }
    best = max(rates, key=lambda layers: rates[layers] or 0.0)
    ordered = replace(order("tiny", tmp_path, 12, study="unequal"), spec=with_settings(spec, {"budget.trials": 6}))
    run(ordered)
    with Store.open(ordered.database, read_only=True) as store:
        chosen = summary_of(store, "unequal").best
    assert chosen is not None
    assert chosen.result.candidate.partition == (best, 36 - best)
