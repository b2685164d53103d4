"""The final: rounds, dropping out, going on after a kill, and how well it chooses."""

from __future__ import annotations

import numpy as np
import pytest

from partitune.analysis.final import Final, FinalRun, most_runs
from partitune.candidate import Objective, Outcome

THROUGHPUT = Objective("output_throughput_tok_s", "maximize")


def final(*trials: int, default: int | None = 0, pairs: int = 2) -> Final:
    return Final(THROUGHPUT, default, {trial: 200.0 - trial for trial in trials}, pairs)


def play(
    one: Final, values: dict[int, float | Outcome]
) -> tuple[tuple[int, ...], dict[FinalRun, float | Outcome], list[int]]:
    """Run whatever is due, one at a time, as with one cluster; who is left, all runs, trials in their order."""
    done: dict[FinalRun, float | Outcome] = {}
    order = []
    while due := one.standing(done)[1]:
        done[due[0]] = values[due[0].trial]
        order.append(due[0].trial)
    return one.standing(done)[0], done, order


def test_four_finalists_take_six_runs_then_the_winner_and_the_default_take_turns() -> None:
    left, done, order = play(final(1, 2, 3, 4), {0: 100.0, 1: 100.0, 2: 250.0, 3: 300.0, 4: 110.0})
    assert left == (3,)
    # Own figures 199, 198, 197, 196 count on: means 149.5, 224, 248.5, 153 after the first round.
    assert order == [1, 2, 3, 4, 3, 2, 0, 3, 3, 0]
    assert len(done) == most_runs(4, 2) == 10


def test_who_fails_drops_out() -> None:
    left, _, order = play(final(1, 2), {0: 100.0, 1: Outcome.FAILED, 2: 90.0})
    assert left == (2,)
    assert order == [1, 2, 0, 2, 2, 0]
    assert play(final(1, 2), {1: Outcome.FAILED, 2: Outcome.FAILED})[0] == ()


def test_what_infrastructure_took_drops_nobody() -> None:
    left, _, order = play(final(1, 2), {0: 100.0, 1: Outcome.LOST, 2: 90.0})
    assert left == (1,)  # 199 in the search, and nothing else is known of it; 2 has 198 and 90
    assert order == [1, 2, 0, 1, 1, 0]
    both = play(final(1, 2, 3), {0: 100.0, 1: Outcome.LOST, 2: Outcome.FAILED, 3: 300.0})
    assert both[0] == (3,)


def test_a_pair_counts_when_both_were_measured() -> None:
    one = final(1)
    done: dict[FinalRun, float | Outcome] = {
        FinalRun("verdict", 1, 0): 100.0,
        FinalRun("verdict", 1, 1): Outcome.FAILED,
        FinalRun("verdict", 2, 1): 105.0,
        FinalRun("verdict", 2, 0): 99.0,
    }
    assert one.measured_pairs(done) == ((FinalRun("verdict", 2, 0), FinalRun("verdict", 2, 1)),)
    assert one.standing(done)[1] == ()


def test_another_winner_does_not_get_the_default_of_yesterday() -> None:
    _, done, _ = play(final(1), {0: 100.0, 1: 110.0})
    one = final(2)
    assert one.standing(done)[1] == tuple(
        FinalRun("verdict", pair, trial) for pair, trial in ((3, 0), (3, 2), (4, 2), (4, 0))
    )
    while due := one.standing(done)[1]:
        done[due[0]] = 120.0
    assert [default.repeat for default, _ in one.measured_pairs(done)] == [3, 4]
    assert final(1).standing(done)[1] == ()  # the old one still has its own pairs
    assert [default.repeat for default, _ in final(1).measured_pairs(done)] == [1, 2]


def test_without_a_default_the_selection_is_all() -> None:
    left, _, order = play(final(1, 2, 3, default=None), {1: 200.0, 2: 150.0, 3: 100.0})
    assert (left, order) == ((1,), [1, 2, 3, 1, 2])
    assert play(final(default=None), {}) == ((), {}, [])


def test_a_final_goes_on_where_it_stopped() -> None:
    one, values = final(1, 2, 3, 4, 5, 6, 7, 8, pairs=3), {trial: 300.0 - trial for trial in range(9)}
    left, done, _ = play(one, dict(values))
    for kept in range(len(done)):
        resumed = dict(list(done.items())[:kept])
        while due := one.standing(resumed)[1]:
            resumed[due[-1]] = values[due[-1].trial]  # in another order, as several workers would
        assert one.standing(resumed) == (left, ())
        assert resumed == done


@pytest.mark.parametrize(("noise", "published"), [(0.02, 0.36), (0.04, 0.72)])
def test_the_mean_regret_of_the_chosen_one_is_that_of_published_halving(noise: float, published: float) -> None:
    """Gaps 0, .5, 1, 1.5, 2, 3, 4, 5 %: 0.36 % and 0.72 % with 24 runs; ours has 8 trials and 14 runs: 22."""
    gaps = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 5])
    random = np.random.default_rng(7)
    regrets = []
    for _ in range(1500):
        seen = {trial: float((1 - gap / 100) * (1 + random.normal(0, noise))) for trial, gap in enumerate(gaps)}
        one = Final(THROUGHPUT, None, dict(sorted(seen.items(), key=lambda item: -item[1])), 0)
        done: dict[FinalRun, float | Outcome] = {}
        while due := one.standing(done)[1]:
            done |= {run: float((1 - gaps[run.trial] / 100) * (1 + random.normal(0, noise))) for run in due}
        regrets.append(gaps[one.standing(done)[0][0]])
    assert np.mean(regrets) < published * 1.25
