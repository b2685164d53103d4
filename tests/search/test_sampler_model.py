"""What the sampler is made of: rows of points, the Gaussian process, what an untried point promises."""

from __future__ import annotations

import math

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, IntDistribution
from scipy.integrate import quad
from scipy.stats import norm

from partitune.candidate import FlagValue, Origin
from partitune.search.proposers.axes import COUNTED, Axes
from partitune.search.proposers.gaussian_process import Floats, GaussianProcess
from partitune.search.proposers.improvement import expected_improvement, learnt, targets, weights
from partitune.search.proposers.sampler import UnseenSampler
from partitune.spec.domains import Domain, RealRange, WholeRange

ORDERED = np.array([True])


def test_the_process_bridges_as_ornstein_and_uhlenbeck_do() -> None:
    """Between two points of an exponential kernel the mean is a hyperbolic sine's, whatever else was told."""
    points: Floats = np.array([[0.0], [0.4], [1.0]])
    values: Floats = np.array([3.0, -1.0, 2.0])
    process = GaussianProcess(points, values, ORDERED, np.array([2.0]))
    kernel = np.exp(-2 * np.abs(points - points.T))
    level = np.linalg.solve(kernel, values).sum() / np.linalg.inv(kernel).sum()
    for x in (0.1, 0.2, 0.39):
        left, right = math.sinh(2 * (0.4 - x)), math.sinh(2 * x)
        between: Floats = np.array([[x]])
        mean, deviation = process.predict(between)
        expected = level + (left * (3.0 - level) + right * (-1.0 - level)) / math.sinh(0.8)
        assert mean[0] == pytest.approx(expected, abs=2e-3)  # the noise is small and not nothing
        assert deviation[0] > process.predict(points)[1].max()


def test_the_process_finds_out_which_parameter_matters() -> None:
    random = np.random.default_rng(1)
    points: Floats = np.column_stack((random.random((40, 2)), random.integers(0, 4, 40))).astype(np.float64)
    process = GaussianProcess(points, 5 * points[:, 0], np.array([True, True, False]))
    steep, flat, other = process._rates
    assert steep > 5 * flat
    assert steep > 5 * other
    assert process.predict(points)[0] == pytest.approx(5 * points[:, 0], abs=0.02)


def test_of_what_has_no_order_only_equality_counts() -> None:
    points, values = np.array([[0.0], [5.0]]), np.array([1.0, 2.0])
    process = GaussianProcess(points, values, np.array([False]), np.array([1.0]))
    mean, _ = process.predict(np.array([[1.0], [4.0], [99.0]]))
    assert mean == pytest.approx([mean[0]] * 3)


def test_what_is_running_is_believed_and_known_better() -> None:
    process = GaussianProcess(np.array([[0.0], [1.0]]), np.array([0.0, 1.0]), ORDERED, np.array([1.0]))
    between = np.array([[0.5]])
    mean, deviation = process.predict(between)
    after, surer = process.believing(between).predict(between)
    assert after == pytest.approx(mean)
    assert surer[0] < deviation[0] / 10


@given(st.floats(-3, 3), st.floats(0.05, 3), st.floats(-3, 3))
def test_expected_improvement_is_the_integral(mean: float, deviation: float, best: float) -> None:
    integral, _ = quad(lambda x: (best - x) * norm.pdf(x, mean, deviation), mean - 12 * deviation, best, limit=200)
    value = expected_improvement(np.array([mean]), np.array([deviation]), best)[0]
    assert value == pytest.approx(max(integral, 0.0) if best > mean - 12 * deviation else 0.0, abs=1e-6)


def test_the_weights_go_from_end_to_end_of_the_front_and_between() -> None:
    random = np.random.default_rng(0)
    drawn = [weights(2, turn, random) for turn in range(6)]
    assert [list(one) for one in (drawn[0], drawn[1], drawn[3], drawn[4])] == [[1, 0], [0, 1]] * 2
    assert all(0 < one[0] < 1 and one.sum() == pytest.approx(1) for one in (drawn[2], drawn[5]))
    assert list(weights(1, 7, random)) == [1]


def test_what_cannot_run_is_worse_than_the_worst_by_how_far_it_is_off() -> None:
    costs, misses = np.array([[1.0], [2.0], [9.0], [0.0], [0.0]]), np.array([0.0, 0.0, 0.0, 1.0, 4.0])
    numbers = targets(costs, misses, np.array([1.0]))
    assert numbers[0] < numbers[1] < numbers[2] < numbers[3] < numbers[4]
    nothing_ran = targets(costs[3:], misses[3:], np.array([1.0]))
    assert nothing_ran[0] < nothing_ran[1]


def test_several_costs_are_one_by_their_greatest_and_their_sum() -> None:
    numbers = targets(np.array([[0.0, 4.0], [2.0, 0.0], [1.0, 1.0]]), np.zeros(3), np.array([0.5, 0.5]))
    # Scaled: (0, 1), (1, 0), (1/2, 1/4); halves of them: greatest 1/2, 1/2, 1/4 and sums 1/2, 1/2, 3/8.
    assert numbers == pytest.approx([0.5, 0.5, (0.25 + 0.375) / 2])


def test_of_many_trials_the_last_and_the_best_are_learnt_from() -> None:
    numbers = np.array([5.0, 1.0, 4.0, 2.0, 3.0, 9.0, 9.0, 9.0])
    assert list(learnt(numbers, 4)) == [1, 3, 6, 7]
    assert list(learnt(numbers, 8)) == [*range(8)]


SPACE: dict[str, Domain] = {
    "tokens": (8192, 512, 2048),
    "async": (True, False),
    "two": (1, 9),
    "plan": ("front-0", "seed-1", "default"),
    "seqs": WholeRange(low=16, high=64, step=16),
    "fixed": ("x",),
}


def test_a_list_of_numbers_is_an_order_and_of_two_numbers_neither_is_between() -> None:
    axes = Axes(SPACE)
    assert axes.distributions == {
        "async": CategoricalDistribution((True, False)),
        "plan": CategoricalDistribution(("front-0", "seed-1", "default")),
        "seqs": IntDistribution(16, 64, step=16),
        "tokens": IntDistribution(0, 2),
        "two": CategoricalDistribution((1, 9)),
    }
    assert list(axes.ordered) == [False, False, True, True, False]
    point: dict[str, FlagValue] = {"async": False, "plan": "default", "seqs": 32, "tokens": 2048, "two": 1}
    assert axes.row(point) == pytest.approx([1, 2, 1 / 3, 1 / 2, 0])


def test_every_point_comes_once_and_is_itself_again() -> None:
    axes = Axes(SPACE)
    rows = axes.every_row()
    assert rows is not None
    points = [axes.point(row) for row in rows]
    assert len({tuple(point.items()) for point in points}) == len(points) == 2 * 3 * 4 * 3 * 2
    for row, point in zip(rows, points, strict=True):
        assert axes.row(point) == pytest.approx(row)
        assert axes.named(axes.coded(point)) == point


@pytest.mark.parametrize(
    "domain",
    [RealRange(low=0.5, high=2.0), RealRange(low=0.1, high=10.0, log=True), WholeRange(low=1, high=10**9, log=True)],
)
def test_a_space_that_cannot_be_counted_through_is_drawn_from(domain: Domain) -> None:
    axes = Axes({"x": domain, "flag": ("a", "b")})
    assert axes.every_row() is None
    random = np.random.default_rng(0)
    start = axes.drawn(1, random)[0]
    near = axes.around(start, 50, random)
    for row in (*axes.drawn(50, random), *near):
        point = axes.point(row)
        assert all(one._contains(one.to_internal_repr(point[name])) for name, one in axes.distributions.items())
        assert {type(value) for value in point.values()} <= {int, float, str}  # and nothing of NumPy's
    assert ((near != start).sum(axis=1) <= 1).all()


def test_a_range_of_one_value_is_no_parameter() -> None:
    assert Axes({"x": RealRange(low=2.0, high=2.0), "y": WholeRange(low=1, high=1), "z": (3,)}).distributions == {}
    assert Axes({"x": WholeRange(low=1, high=COUNTED + 1)}).every_row() is None


def test_it_is_a_sampler_of_optuna_for_any_study() -> None:
    """Used as Optuna's own are: none twice, and the least of a bowl within a third of its points."""
    axes = Axes({"x": (1, 2, 3, 4, 5, 6, 7, 8, 9), "y": (10, 20, 30, 40, 50)})
    sampler = UnseenSampler(axes, 0, lambda point: True)
    study = optuna.create_study(sampler=sampler)
    tried = []
    for turn in range(15):
        sampler.entropy = (turn,)
        trial = study.ask(axes.distributions)
        point = axes.named(trial.params)
        tried.append((point["x"], point["y"]))
        study.tell(trial, (int(point["x"]) - 7) ** 2 + (int(point["y"]) / 10 - 2) ** 2)
    assert len({*tried}) == 15
    assert (7, 20) in tried
    assert sampler.origin == Origin.SAMPLER


def test_asked_for_at_once_points_differ_and_keep_a_distance_from_what_is_running() -> None:
    """Without belief in what is running, the second would stand beside the first."""
    axes = Axes({"x": tuple(range(100))})
    sampler = UnseenSampler(axes, 0, lambda point: True)
    study = optuna.create_study(sampler=sampler)
    for x in (0, 49, 99):
        study.add_trial(
            optuna.trial.create_trial(params={"x": x}, distributions=axes.distributions, value=float(abs(x - 50)))
        )
    asked = [int(study.ask(axes.distributions).params["x"]) for _ in range(6)]
    assert len({*asked}) == 6
    assert abs(asked[1] - asked[0]) >= 5
