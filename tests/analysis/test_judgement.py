"""What a final says: which words, which trial, and when the default stays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import exp, expm1

import pytest

from partitune.analysis.comparison import NO_DIFFERENCE, WORSE, nearest_miss
from partitune.analysis.final import DecisionRules, Final, FinalRun
from partitune.analysis.judgement import Judgement, judge, line_up
from partitune.analysis.trial import Trial
from partitune.candidate import Candidate, Measurement, Objective, Outcome, Result

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")
TTFT = Objective("ttft_p99_ms", "minimize")


def measured(throughput: float, ttft: float = 100.0, missed: float = -1.0, *, simulated: bool = False) -> Result:
    metrics = {THROUGHPUT.metric: throughput, TTFT.metric: ttft}
    measurement = Measurement(metrics, (), "async-v1", 1, 16, 0, "", simulated, {TTFT.metric: missed})
    outcome = Outcome.OK if missed <= 0 else Outcome.INFEASIBLE
    return Result(Candidate((4,)), outcome, "" if missed <= 0 else "missed", measurement, {TTFT.metric: missed})


def verdict(
    default: Sequence[Result], winner: Sequence[Result], objectives: Sequence[Objective] = (THROUGHPUT, TTFT)
) -> Judgement:
    final = Final(THROUGHPUT, 0, {7: 100.0}, len(default))
    results = {FinalRun("verdict", pair, 0): result for pair, result in enumerate(default, 1)}
    results |= {FinalRun("verdict", pair, 7): result for pair, result in enumerate(winner, 1)}
    return judge(final, results, objectives, 0.01)


SAME = (100.0, 101.0, 99.0, 100.5, 99.5)


@pytest.mark.parametrize(
    ("throughput", "ttft", "words", "chosen"),
    [
        ((105.0, 106.1, 104.0, 105.4, 104.5), SAME, ("better", NO_DIFFERENCE), 7),
        (SAME, (90.0, 91.0, 89.0, 90.5, 89.5), (NO_DIFFERENCE, "better"), 7),
        (SAME, SAME[::-1], (NO_DIFFERENCE, NO_DIFFERENCE), 0),
        (SAME, (110.0, 111.0, 109.0, 110.5, 109.5), (NO_DIFFERENCE, WORSE), 0),
        ((95.0, 96.0, 94.0, 95.5, 94.5), (90.0, 91.0, 89.0, 90.5, 89.5), (WORSE, "better"), 0),
        ((105.0, 106.1, 104.0, 105.4, 104.5), (110.0, 111.0, 109.0, 110.5, 109.5), ("better", WORSE), 7),
        ((110.0, 90.0, 112.0, 88.0, 108.0), SAME, (NO_DIFFERENCE, NO_DIFFERENCE), 0),
    ],
)
def test_the_first_objective_decides_and_a_trade_nobody_asked_for_is_no_gain(
    throughput: Sequence[float], ttft: Sequence[float], words: Sequence[str], chosen: int
) -> None:
    found = verdict(
        [measured(a, b) for a, b in zip(SAME, SAME, strict=True)],
        [measured(a, b) for a, b in zip(throughput, ttft, strict=True)],
    )
    said = [found.gains[one.metric].verdict(0.01) for one in (THROUGHPUT, TTFT)]
    assert all(one.startswith(word) for one, word in zip(said, words, strict=True))
    assert found.chosen == chosen
    assert found.comparison is not None
    assert found.comparison.text == (
        f"{THROUGHPUT.metric} {said[0]}; {TTFT.metric} {said[1]} "
        "(trial 7 and the default, 5 pairs of fresh runs; indifference zone 1 %)"
    )


def test_the_interval_is_the_textbook_one() -> None:
    """Log ratios of 5, 7, 3 %: mean 5 %, s 2 %, t(0.98, 2 degrees) = 4.849: ± 5.6 %."""
    default, winner = [measured(100.0)] * 3, [measured(100 * exp(x)) for x in (0.05, 0.07, 0.03)]
    found = verdict(default, winner, (THROUGHPUT,)).gains[THROUGHPUT.metric]
    reach = 4.8487 * 0.02 / 3**0.5
    assert (found.gain, found.low, found.high) == pytest.approx(
        (expm1(0.05), expm1(0.05 - reach), expm1(0.05 + reach)), rel=1e-4
    )


def test_a_gain_that_was_seen_in_noise_is_priced_in_pairs() -> None:
    winner = [measured(a * f) for a, f in zip(SAME, (1.10, 0.98, 1.09, 0.97, 1.06), strict=True)]
    found = verdict([measured(a) for a in SAME], winner, (THROUGHPUT,))
    more = found.more_pairs(THROUGHPUT.metric, 0.01)
    assert more is not None
    # n = (z.98 + z.80)² (sd of a log ratio / log gain)² is what the normal distribution would ask for
    gain, noise = found.gains[THROUGHPUT.metric].gain, found.gains[THROUGHPUT.metric].noise
    assert more + 5 == pytest.approx((2.054 + 0.842) ** 2 * (noise / gain) ** 2, rel=0.25)
    (line,) = found.lines(0.01)
    assert line.endswith(f"to find that much takes about {more + 5} pairs, {more} more (budget.pairs)")
    both = verdict([measured(a) for a in SAME], winner)
    assert both.more_pairs(TTFT.metric, 0.01) is None
    shared = both.more_pairs(THROUGHPUT.metric, 0.01)
    assert shared is not None
    assert shared > more  # two objectives share the error that one has for itself


def test_a_limit_missed_in_one_run_is_missed() -> None:
    winner = [measured(110.0) for _ in SAME[1:]] + [measured(110.0, missed=0.02)]
    found = verdict([measured(a) for a in SAME], winner)
    assert found.pairs == 4
    assert found.gains[THROUGHPUT.metric].verdict(0.01).startswith("better")
    assert (found.chosen, found.why) == (0, "engine default: trial 7 missed a limit in 1 of its 5 last runs")


def test_pairs_that_could_not_be_measured_say_nothing() -> None:
    broken = Result(Candidate((4,)), Outcome.FAILED, "it broke")
    found = verdict([measured(a) for a in SAME], [broken] * 4 + [measured(150.0)])
    assert found.comparison is not None
    failed = "failed starts: trial 7 4 of 5, trial 0 0 of 5"
    assert (
        found.comparison.text == f"{NO_DIFFERENCE} (trial 7 and the default: 1 of 5 pairs could be measured, {failed})"
    )
    assert (found.chosen, found.finalists[0].failed) == (0, 4)


BROKEN = Result(Candidate((4,)), Outcome.FAILED, "it broke")
LOST = Result(Candidate((4,)), Outcome.LOST, "the node went away")


def test_a_deployment_that_crashes_more_often_than_the_default_does_not_win() -> None:
    """130 in two of five starts and failed in three, beside a default of 100: it was called better by 30 %."""
    found = verdict([measured(a) for a in SAME], [measured(130.0), BROKEN, measured(131.0), BROKEN, BROKEN])
    assert (found.chosen, found.why) == (0, "engine default: trial 7 failed in 3 of its 5 starts, the default 0 of 5")
    assert found.comparison is not None
    assert "failed starts: trial 7 3 of 5, trial 0 0 of 5" in found.comparison.text
    assert [starts["failed"] for starts in found.to_json(0.01)["starts"]] == [3, 0]


@pytest.mark.parametrize(
    ("default", "winner", "chosen"),
    [
        ([measured(a) for a in SAME[:4]] + [BROKEN], [measured(130.0)] * 4 + [BROKEN], 7),  # both alike
        ([measured(a) for a in SAME], [measured(130.0)] * 3 + [LOST, LOST], 7),  # infrastructure says nothing of it
        ([measured(a) for a in SAME[:3]] + [BROKEN] * 2, [measured(a) for a in SAME], 7),  # equal, and it starts
        ([measured(a) for a in SAME[:3]] + [BROKEN] * 2, [measured(a * 0.9) for a in SAME], 0),  # worse
        ([BROKEN] * 5, [measured(a) for a in SAME], 7),
        ([BROKEN] * 5, [BROKEN] * 5, 0),
    ],
)
def test_how_often_both_failed_is_weighed_both_ways(
    default: Sequence[Result], winner: Sequence[Result], chosen: int
) -> None:
    assert verdict(default, winner).chosen == chosen


def test_an_unfinished_final_chooses_nobody() -> None:
    found = verdict([measured(a) for a in SAME], [measured(120.0)] * 4)
    assert (found.over, found.chosen, found.comparison, found.gains) == (False, None, None, {})
    (line,) = found.lines(0.01)
    assert line.startswith("the final is not finished (9 of 10 runs): the verdict rests on single runs until it is;")


def test_a_final_without_a_default_has_a_winner_and_without_survivors_none() -> None:
    one = Final(THROUGHPUT, None, {3: 110.0, 4: 109.0}, 5)
    runs: Mapping[FinalRun, Result] = {
        FinalRun("selection", 1, 3): measured(90.0),
        FinalRun("selection", 1, 4): measured(112.0),
    }
    found = judge(one, runs, [THROUGHPUT], 0.01)
    assert (found.over, found.chosen, found.comparison) == (True, 4, None)
    assert [row.out for row in found.finalists] == ["round 1", ""]
    broken = Result(Candidate((4,)), Outcome.FAILED, "it broke")
    found = judge(one, dict.fromkeys(runs, broken), [THROUGHPUT], 0.01)
    assert (found.chosen, found.why) == (None, "no trial can be deployed: every finalist failed when it was run again")


def test_who_takes_part() -> None:
    def final(results: Mapping[int, Result], rules: DecisionRules) -> Final | None:
        now = datetime.now(UTC)
        trials = [Trial("s", n, "sampler:x" if n else "default:default", now, result) for n, result in results.items()]
        return line_up(trials, THROUGHPUT, rules)

    trials = {
        0: measured(100.0),
        1: measured(99.5),  # within the zone of the default
        2: measured(98.0),
        3: measured(104.0),
        4: measured(200.0, missed=0.1),
        5: measured(300.0, simulated=True),
        6: measured(104.0),
        7: Result(Candidate((4,)), Outcome.FAILED, "it broke"),
    }
    rules = DecisionRules(finalists=4, pairs=2)
    found = final(trials, rules)
    assert found is not None
    assert (found.default, list(found.finalists)) == (0, [3, 6, 1])
    assert final(trials, DecisionRules(finalists=1)) == Final(THROUGHPUT, 0, {3: 104.0}, 5)
    assert final(trials, DecisionRules(finalists=0)) is None
    assert final({0: trials[0], 2: trials[2]}, rules) is None
    without = final({**trials, 0: trials[7]}, rules)
    assert without is not None
    assert (without.default, list(without.finalists)) == (None, [3, 6, 1, 2])


def test_the_nearest_miss_is_the_one_whose_worst_limit_is_least_missed() -> None:
    found = [measured(1.0, missed=0.3), measured(1.0, missed=0.1), measured(1.0, missed=0.2), measured(1.0)]
    assert nearest_miss(found) == 1
    out_of_memory = Result(Candidate((4,)), Outcome.INFEASIBLE, "short", None, {"memory_gib_over": 0.01})
    assert nearest_miss([out_of_memory]) is None
