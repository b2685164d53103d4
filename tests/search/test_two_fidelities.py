"""A study that launches: screened before, decided by a final after, whatever stops it on the way."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.report.output import Output
from partitune.report.study import print_summary
from partitune.search.budget import Progress
from partitune.search.events import Unwatched
from partitune.search.stored_study import summary_of
from partitune.search.study import StudyOrder, run
from partitune.spec.overrides import with_settings
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.store import Store

#: Measures in noise that follows from candidate and seed, and writes down what it measures. TRUTH is one of a test.
SITE = """
import math, random
from dataclasses import replace
from pathlib import Path
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.errors import NodeLost

class Cluster:
    def __init__(self, problem, runner):
        self.simulator, self.seed = SimulatorDriver(problem), runner.benchmark.seed

    def measure(self, candidate):
        with (Path(__file__).parent / "journal").open("a") as file:
            file.write(f"{candidate.digest} {self.seed}\\n")
        found = self.simulator.measure(candidate)
        noise = random.Random(f"{candidate.digest} {self.seed}").gauss(0, NOISE)
        drift = random.Random(f"{self.seed}").gauss(0, 0.05)  # common to all that answer the same requests
        figures = dict(found.metrics)
        simulated = figures["output_throughput_tok_s"]
        figures["output_throughput_tok_s"] = (TRUTH) * math.exp(noise + drift)
        figures["ttft_p99_ms"] = 1000.0
        return replace(found, metrics=figures, simulated=False, constraints=CONSTRAINTS)
"""


def site(folder: Path, truth: str, noise: float = 0.01, constraints: str = "{}") -> Runner:
    text = SITE.replace("TRUTH", truth).replace("NOISE", str(noise)).replace("CONSTRAINTS", constraints)
    (folder / "cluster.py").write_text(text)
    (folder / "cluster.yaml").write_text("kind: runner\nname: cluster\ndriver: cluster.py:Cluster\nworkers: 1\n")
    return Runner.load(str(folder / "cluster.yaml"))


METRIC = "output_throughput_tok_s"


def order(folder: Path, runner: Runner, **changes: object) -> StudyOrder:
    settings = {"budget.trials": 8, "budget.screen": 20, "budget.finalists": 3, "budget.pairs": 4}
    spec = with_settings(SearchSpace.load("tiny"), {**settings, **changes})
    return StudyOrder(spec, runner, str(folder / "results.db"), "tiny", "local")


class Heard(Unwatched):
    """All that a person hears of a run; raises KeyboardInterrupt when `stop` says so."""

    def __init__(self, stop: Callable[[str], bool] = lambda _: False) -> None:
        self.lines: list[str] = []
        self.phases: list[str] = []
        self._stop = stop

    def tick(self, progress: Progress) -> None:
        self.phases.append(progress.phase)

    def said(self, text: str) -> None:
        self.lines.append(text)
        if self._stop(text):
            raise KeyboardInterrupt

    def run(self, one: StudyOrder) -> Progress:
        with run(one, self) as (_, progress):
            return progress


def journal(folder: Path) -> list[str]:
    path = folder / "journal"
    return path.read_text().splitlines() if path.exists() else []


def shown(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a person reads at the end of the search."""
    capsys.readouterr()
    with Store.open(folder / "results.db", read_only=True) as store:
        print_summary(Output(), summary_of(store, "tiny"), every=True)
    return capsys.readouterr().out


def told(folder: Path) -> dict[str, Any]:
    """The JSON object that it ends with."""
    with Store.open(folder / "results.db", read_only=True) as store:
        data: dict[str, Any] = json.loads(json.dumps(summary_of(store, "tiny").to_json(), allow_nan=False))
    return data


EQUAL = "1000.0"
AS_SIMULATED = "simulated"
UPSIDE_DOWN = "1e6 / simulated"
#: The simulator knows nothing of it.
SMALL_CHUNKS = "1100.0 if candidate.flags['max_num_batched_tokens'] == 256 else 1000.0"
NOISE = 0.01


def verdict_words(data: dict[str, Any]) -> str:
    (gain,) = data["final"]["gains"].values()
    assert data["verdict"].startswith(f"output_throughput_tok_s {gain['verdict']} (trial {data['final']['last']} and ")
    return str(gain["verdict"])


def test_where_all_are_equal_the_default_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard = Heard()
    heard.run(order(tmp_path, site(tmp_path, EQUAL, 0.004)))
    data = told(tmp_path)
    assert verdict_words(data) == "no significant difference: keep the default"
    assert data["best"]["trial"] == 0
    assert data["final"]["over"]
    assert data["final"]["runs"] == 3 + 2 + 2 * 4
    assert "16 candidates simulated before any is launched" in heard.lines  # 16 is all there are
    assert "screen, 3 of 20 candidates simulated" in heard.phases
    assert "final, verdict, pair 4, trial 0 (13 of at most 13 runs)" in heard.phases
    assert "verdict: output_throughput_tok_s no significant difference: keep the default" in shown(tmp_path, capsys)


def test_a_simulator_that_is_right_launches_the_best_first_and_it_wins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Heard().run(order(tmp_path, site(tmp_path, AS_SIMULATED, 0.002), **{"budget.trials": 5}))
    data = told(tmp_path)
    with Store.open(tmp_path / "results.db", read_only=True) as store:
        screened = {one.result.candidate.digest: one.result.metric(METRIC) or 0 for one in store.screened("tiny")}
        trials = store.trials("tiny")
    # The seeds of this space are its default and its exact optimum, so they are no trials of their own.
    assert [trial.submission.promoted for trial in trials] == [False, False, True, True, True]
    assert verdict_words(data).startswith("better by ")
    best = screened[next(trial for trial in trials if trial.number == data["best"]["trial"]).result.candidate.digest]
    default = screened[trials[0].result.candidate.digest]
    assert abs(data["final"]["gains"][METRIC]["gain"] - (best / default - 1)) < 0.01
    assert data["fidelity"]["pairs"] == 5
    assert data["fidelity"]["tau"] > 0.5


def test_a_simulator_that_is_upside_down_is_found_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Heard().run(order(tmp_path, site(tmp_path, UPSIDE_DOWN, 0.002), **{"budget.trials": 12}))
    data = told(tmp_path)
    assert data["fidelity"]["tau"] < 0
    assert "simulator against cluster: 12 candidates, Kendall tau -" in shown(tmp_path, capsys)


def test_a_gain_nobody_simulated_is_found_and_claimed_with_its_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Heard().run(order(tmp_path, site(tmp_path, SMALL_CHUNKS), **{"budget.trials": 16}))
    data = told(tmp_path)
    gain = data["final"]["gains"][METRIC]
    assert (
        gain["verdict"]
        == f"better by {100 * gain['gain']:.1f} % ({100 * gain['low']:.1f} to {100 * gain['high']:.1f} %)"
    )
    assert gain["low"] < 0.10 < gain["high"]
    assert data["best"]["knobs"]["max_num_batched_tokens"] == 256
    text = shown(tmp_path, capsys)
    assert f"better by {100 * gain['gain']:.1f} %" in text
    assert "(mean of 4 fresh runs)" in text
    written = tmp_path / "deploy.env"
    assert main(["export", "tiny", "-o", str(written), "--db", str(tmp_path / "results.db")]) == 0
    default = "against the engine's default "
    (line,) = [text for text in written.read_text().splitlines() if default in text]
    assert " at its starting flags (" in line
    assert line.endswith(f": {data['verdict']}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    Heard().run(order(folder, site(folder, EQUAL, 0.004)))
    return folder


@pytest.mark.parametrize("line", ["16 candidates", "final: ", "final, selection, round 1", "pair 2, trial"])
def test_a_search_that_was_ended_anywhere_goes_on_and_makes_no_run_twice(
    tmp_path: Path, whole: Path, line: str
) -> None:
    one = order(tmp_path, site(tmp_path, EQUAL, 0.004))
    with pytest.raises(KeyboardInterrupt):
        Heard(lambda text: line in text).run(one)
    assert len(journal(tmp_path)) < len(journal(whole))
    Heard().run(one)
    assert journal(tmp_path) == journal(whole)
    assert len(set(journal(whole))) == len(journal(whole)) == 8 + 13
    with Store.open(tmp_path / "results.db", read_only=True) as first, Store.open(whole / "results.db") as second:
        assert [one.run for one in first.repeats("tiny")] == [one.run for one in second.repeats("tiny")]
        assert [one.origin for one in first.screened("tiny")] == [one.origin for one in second.screened("tiny")]


def test_a_screen_that_was_ended_goes_on_with_what_is_missing(tmp_path: Path, whole: Path) -> None:
    class Impatient(Heard):
        def tick(self, progress: Progress) -> None:
            super().tick(progress)
            if progress.phase.startswith("screen, 7 of"):
                raise KeyboardInterrupt

    one = order(tmp_path, site(tmp_path, EQUAL, 0.004))
    with pytest.raises(KeyboardInterrupt):
        Impatient().run(one)
    assert journal(tmp_path) == []
    again = Heard()
    again.run(one)
    assert next(phase for phase in again.phases if phase.startswith("screen")) == "screen, 8 of 20 candidates simulated"
    assert journal(tmp_path) == journal(whole)


def test_the_pairs_answer_the_same_load_and_no_other_run_does(whole: Path) -> None:
    seeds = [int(line.split()[1]) for line in journal(whole)]
    assert seeds[:8] == [1] * 8
    assert seeds[8:] == [2] * 3 + [3] * 2 + [12, 12, 13, 13, 14, 14, 15, 15]


def test_a_budget_of_hours_leaves_some_for_the_final_and_says_when_it_was_not_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = site(tmp_path, "__import__('time').sleep(0.05) or 1000.0")
    progress = Heard().run(order(tmp_path, slow, **{"budget.hours": 0.8 / 3600, "budget.trials": 100}))
    assert progress.stopped == "the budget of 0.000222222 hours is spent; the final is not finished"
    assert 0 < progress.finished < 16
    text = shown(tmp_path, capsys)
    assert "the final is not finished (" in text
    assert "the verdict rests on single runs until it is; the same search command goes on with it" in text
    assert "(single runs, not repeated; indifference zone 1 %)" in text or "keep the default" in text


def test_a_final_is_run_again_only_as_far_as_more_pairs_ask_for(tmp_path: Path) -> None:
    runner = site(tmp_path, EQUAL, 0.004)
    Heard().run(order(tmp_path, runner))
    before = journal(tmp_path)
    Heard().run(order(tmp_path, runner, **{"budget.pairs": 6, "indifference_zone": 0.02}))
    added = journal(tmp_path)[len(before) :]
    assert [line.split()[1] for line in added] == ["16", "16", "17", "17"]


def test_without_finalists_single_runs_are_called_what_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = {"budget.finalists": 0, "budget.screen": 0, "budget.trials": 16}
    heard = Heard()
    heard.run(order(tmp_path, site(tmp_path, SMALL_CHUNKS), **changes))
    assert heard.lines == []
    data = told(tmp_path)
    assert (data["final"], data["fidelity"]) == (None, None)
    assert data["verdict"].endswith("(single runs, not repeated; indifference zone 1 %)")


def test_limits_that_nothing_keeps_are_answered_with_the_nearest_miss(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missed = "{'ttft_p99_ms': 0.075 if candidate.flags['max_num_batched_tokens'] == 512 else 0.2}"
    heard = Heard()
    heard.run(order(tmp_path, site(tmp_path, EQUAL, constraints=missed), **{"budget.trials": 16}))
    assert not any("final" in line for line in heard.lines)
    data = told(tmp_path)
    assert data["best"] is None
    assert data["nearest_miss"]["knobs"]["max_num_batched_tokens"] == 512
    number = data["nearest_miss"]["trial"]
    assert f"nearest miss: trial {number}, ttft_p99_ms missed by 7.5 %" in shown(tmp_path, capsys)


def test_a_simulated_study_has_no_screen_and_no_final(tmp_path: Path) -> None:
    Heard().run(order(tmp_path, Runner.load("simulator"), **{"budget.trials": 16}))
    data = told(tmp_path)
    assert (data["final"], data["fidelity"], data["nearest_miss"]) == (None, None, None)
    assert "simulated, nothing was measured" in data["verdict"]
