"""Best against default: the fixed words, the indifference zone, default first."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.analysis.comparison import INDIFFERENCE_ZONE as ZONE
from partitune.analysis.comparison import choose, compare, gain, lowered_caps, verdict
from partitune.analysis.final import SERVING_CAPS
from partitune.candidate import Candidate, Direction, Measurement, Objective, Outcome, Result
from tests.analysis.test_pareto import THROUGHPUT, TTFT, TWO, trial, trials

KEEP = "no significant difference: keep the default"


@pytest.mark.parametrize(
    ("direction", "default", "value", "words"),
    [
        ("maximize", 1000, 1042, "better by 4.2 %"),
        ("maximize", 1000, 1009, KEEP),
        ("maximize", 100, 101, KEEP),  # exactly the zone
        ("maximize", 1000, 991, KEEP),
        ("maximize", 1000, 980, "worse"),
        ("minimize", 200, 150, "better by 25.0 %"),
        ("minimize", 200, 201, KEEP),
        ("minimize", 200, 210, "worse"),
        ("maximize", 100, 350, "better by 250.0 %"),
        ("maximize", -10, -5, "better by 50.0 %"),
        ("minimize", 0, 0, KEEP),
        ("minimize", 0, 3, "worse"),
        ("maximize", 0, 3, "better by 100.0 %"),
    ],
)
def test_the_words_are_exactly_these(direction: Direction, default: float, value: float, words: str) -> None:
    assert verdict(gain(Objective("metric", direction), default, value), ZONE) == words


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_directions_mirror_each_other(default: float, value: float) -> None:
    up, down = (gain(Objective("m", direction), default, value) for direction in ("maximize", "minimize"))
    assert up == -down == pytest.approx((value - default) / default)


def test_a_comparison_says_every_objective_and_that_it_is_simulated() -> None:
    found = compare(trial(1000, 100), trial(1100, 120), TWO, ZONE)
    assert [(change.default, change.value, change.verdict) for change in found.changes] == [
        (1000, 1100, "better by 10.0 %"),
        (100, 120, "worse"),
    ]
    assert [change.gain for change in found.changes] == [pytest.approx(0.1), pytest.approx(-0.2)]
    assert found.text == (
        "output_throughput_tok_s better by 10.0 %; ttft_p99_ms worse "
        "(simulated, nothing was measured; indifference zone 1 %)"
    )


def measured(result: Result) -> Result:
    assert result.measurement is not None
    return dataclasses.replace(result, measurement=dataclasses.replace(result.measurement, simulated=False))


def test_single_measured_runs_claim_no_more_than_they_are() -> None:
    found = compare(measured(trial(1000)), measured(trial(1100)), [THROUGHPUT], 0.02)
    assert found.text == "output_throughput_tok_s better by 10.0 % (single runs, not repeated; indifference zone 2 %)"


def test_without_a_measured_default_there_is_nothing_to_compare_with() -> None:
    assert compare(None, trial(1, 1), TWO, ZONE).changes == ()
    lost = dataclasses.replace(trial(1, 1, outcome=Outcome.INFEASIBLE), reason="stage 7 is short of 3 GiB")
    found = compare(lost, trial(1, 1), TWO, ZONE)
    assert found.changes == ()
    assert found.text.endswith("the engine default is infeasible: stage 7 is short of 3 GiB")
    assert compare(trial(1), trial(1, 1), TWO, ZONE).changes == ()


def test_one_objective_takes_its_best() -> None:
    choice = choose(trials((1000, 100), (1200, 300), (1100, 90)), [THROUGHPUT], 0, ZONE)
    assert choice == (1, "best output_throughput_tok_s")


def test_of_several_objectives_the_first_names_the_winner() -> None:
    choice = choose(trials((600, 150), (1000, 200), (900, 130), (500, 100)), TWO, 0, ZONE)
    assert choice[0] == 1
    assert choice[1] == "best output_throughput_tok_s; of those within 1 % of it, best ttft_p99_ms"


def test_what_the_first_objective_does_not_tell_apart_the_second_decides() -> None:
    choice = choose(trials((600, 300), (1000, 200), (995, 130), (980, 90)), TWO, 0, ZONE)
    assert choice[0] == 2


@pytest.mark.parametrize("best", [1000.0, 1009.0, 1010.0])
def test_the_default_stays_unless_it_is_clearly_beaten(best: float) -> None:
    choice = choose(trials((900, 100), (1000, 100), (best, 100)), [THROUGHPUT], 1, ZONE)
    assert choice[0] == 1
    assert choice[1].startswith("engine default: ")


def test_the_zone_is_the_callers() -> None:
    results = trials((1000, 100), (1030, 100))
    chosen = [choose(results, [THROUGHPUT], 0, zone) for zone in (0.01, 0.05)]
    assert [choice[0] for choice in chosen] == [1, 0]


def test_the_default_stays_where_the_best_gains_nowhere_beyond_the_zone() -> None:
    choice = choose(trials((1000, 100), (1005, 99.5)), TWO, 0, ZONE)
    assert choice[0] == 0
    assert choice[1].endswith("beats it by no more than 1 %")


def test_a_winner_lowers_no_cap_for_a_gain_inside_the_zone() -> None:
    """`max-num-seqs: 16` was deployed for 0.06 % more KV tokens."""
    objectives = [THROUGHPUT, Objective("kv_tokens", "maximize")]

    def with_cap(throughput: float, kv_tokens: float, cap: int, partition: tuple[int, ...] = (5, 3)) -> Result:
        measurement = Measurement(
            {THROUGHPUT.metric: throughput, "kv_tokens": kv_tokens}, (), "async-v1", 1, 16, 0, "", simulated=True
        )
        return Result(Candidate(partition, {"max_num_seqs": cap}), Outcome.OK, "", measurement)

    default = with_cap(100, 1000, 128, (4, 4))
    for lowered in (8, 16):
        index, why = choose(
            [default, with_cap(150, 1000.6, lowered), with_cap(150, 1000, 128)], objectives, 0, ZONE, caps=SERVING_CAPS
        )
        assert index == 2
        assert why.endswith("of those that are equal within it, the one that lowers no cap and changes the least")
    index, why = choose([default, with_cap(150, 1000, 16)], objectives, 0, ZONE, caps=SERVING_CAPS)
    assert index == 1
    assert why.endswith("it lowers max_num_seqs from 128 to 16: no trial that lowers less was as good")
    worth_it = [default, with_cap(150, 1100, 16), with_cap(150, 1000, 128)]
    assert choose(worth_it, objectives, 0, ZONE, caps=SERVING_CAPS)[0] == 1
    assert lowered_caps(worth_it[1].candidate, default.candidate, SERVING_CAPS) == ("max_num_seqs",)
    assert lowered_caps(default.candidate, worth_it[1].candidate, SERVING_CAPS) == ()


def test_whoever_is_barred_does_not_win() -> None:
    assert choose(trials((1000, 100), (1200, 100), (1100, 100)), [THROUGHPUT], 0, ZONE, barred=[1])[0] == 2


def test_a_default_that_does_not_run_is_not_kept() -> None:
    results = [trial(2000, 1, outcome=Outcome.INFEASIBLE), trial(1000, 100)]
    for default in (0, None):
        choice = choose(results, [THROUGHPUT], default, ZONE)
        assert choice[0] == 1


def test_nothing_is_chosen_from_failures() -> None:
    assert choose([trial(1, 1, outcome=Outcome.FAILED)], [TTFT], 0, ZONE)[0] is None
    assert choose([], [TTFT], None, ZONE)[0] is None


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=8))
def test_what_is_chosen_over_the_default_beats_it(rows: list[tuple[float, float]]) -> None:
    index, _ = choose(trials(*rows), TWO, 0, ZONE)
    assert index is not None
    verdicts = [change.verdict for change in compare(trial(*rows[0]), trial(*rows[index]), TWO, ZONE).changes]
    assert index == 0 or any(words.startswith("better by") for words in verdicts)
