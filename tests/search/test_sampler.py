"""Item 18: the sampler samples. Every outcome is enumerated by the simulator, so the optimum is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import pytest

from benchmarks.sampler import (
    Truth,
    at_random,
    case,
    median_regrets,
    median_shares,
    sampler_alone,
    whole_search,
    widened,
)
from partitune.candidate import Origin
from partitune.search.proposers import axes, gaussian_process, improvement, optuna, sampler
from partitune.search.proposers.optuna import OptunaProposer
from partitune.search.proposers.sampler import STARTUP_TRIALS
from partitune.spec.overrides import with_settings
from partitune.spec.search_space import SearchSpace

COUNTS = (10, 20, 40)
#: Random draws cost nothing, and their median is to be known; a search of 40 trials costs half a second.
SEEDS, RANDOM_SEEDS = 9, 200


def _small() -> SearchSpace:
    """As shipped it has 16 candidates, of which 11 are the opening."""
    knobs = {"knobs.max_num_batched_tokens": [64, 128, 256, 512, 1024, 2048], "knobs.max_num_seqs": [1, 2, 4, 8]}
    return with_settings(SearchSpace.load("tiny"), knobs)


SPECS: dict[str, Callable[[], SearchSpace]] = {
    "tiny": _small,
    "kimi-k3-pp8-tp2": lambda: SearchSpace.load("kimi-k3-pp8-tp2"),
    "kimi-k3-pp8-tp2-widened": lambda: widened("kimi-k3-pp8-tp2"),
    "llama-70b-pp4": lambda: SearchSpace.load("llama-70b-pp4"),
    "hetero4": lambda: case("hetero4"),
    "tightkv4": lambda: case("tightkv4"),
}


@cache
def truth(space: str) -> Truth:
    return Truth.of(SPECS[space]())


@pytest.mark.parametrize("space", SPECS)
def test_item_18_the_sampler_beats_random_draws(space: str) -> None:
    """Without an opening, by the median of the seeds; of two objectives it fills the front sooner as well.

    Optuna's TPE, with every unseen point ranked, lost on unequal GPUs at 40 trials (3.7 against 0 %), and at 10 on the
    widened space of Kimi K3 and on Llama 70B.
    """
    everything = truth(space)
    ours = median_regrets(everything, sampler_alone, SEEDS, COUNTS)
    theirs = median_regrets(everything, at_random, RANDOM_SEEDS, COUNTS)
    assert all(own <= other for own, other in zip(ours, theirs, strict=True)), (ours, theirs)
    assert ours[-1] < 0.001
    if len(everything.objectives) > 1:
        filled = median_shares(everything, sampler_alone, SEEDS, COUNTS)
        by_chance = median_shares(everything, at_random, RANDOM_SEEDS, COUNTS)
        assert all(own >= other for own, other in zip(filled, by_chance, strict=True)), (filled, by_chance)


def test_item_18_whatever_is_new_comes_from_the_model_and_says_so() -> None:
    """Of 54 trials after the opening 4 to 8 reached 330 tok/s, as 47 were a shuffled grid called the sampler's."""
    everything = truth("kimi-k3-pp8-tp2")
    proposer = OptunaProposer(everything.space, everything.objectives, (), 0)
    origins, reached = [], 0
    for _ in range(60):
        asked = proposer.ask()
        assert asked is not None
        result = everything.results[asked.candidate.digest]
        proposer.tell(asked, result)
        origins.append(asked.origin)
        reached += (result.metric("output_throughput_tok_s") or 0) >= 330
    assert origins == [Origin.RANDOM] * STARTUP_TRIALS + [Origin.SAMPLER] * (60 - STARTUP_TRIALS)
    assert reached > 8


def test_item_18_where_kv_memory_is_sought_the_plan_with_most_of_it_is_tried_at_once() -> None:
    first = [(one.origin, one.plan) for one in truth("kimi-k3-pp8-tp2").space.first_proposals()]
    assert first[1:3] == [(Origin.EXACT, "front-0"), (Origin.EXACT, "front-4")]
    assert (Origin.EXACT, "front-4") not in [(one.origin, one.plan) for one in truth("tiny").space.first_proposals()]


def test_item_18_a_candidate_is_never_asked_for_twice_and_all_are_asked_for() -> None:
    everything = truth("tiny")
    tried = whole_search(everything, 3, 10_000)
    digests = [result.candidate.digest for result in tried]
    assert len(set(digests)) == len(digests) == len(everything.results)


def test_item_18_nothing_of_optuna_is_used_that_is_not_public() -> None:
    """The one before customised TPE through names with an underscore, which a release may move."""
    for module in (axes, gaussian_process, improvement, optuna, sampler):
        imports = [line for line in inspect.getsource(module).splitlines() if "import" in line and "optuna" in line]
        assert not any("._" in line or "import _" in line for line in imports), imports
