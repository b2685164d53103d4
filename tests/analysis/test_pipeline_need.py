"""What is said unasked of a pipeline: which stages wait, and whether the model needs one."""

from __future__ import annotations

from typing import Any

from partitune.analysis.explanation import explain
from partitune.analysis.limits import distance
from partitune.analysis.pipeline_need import is_a_pipeline_needed, stages_that_wait
from partitune.candidate import Candidate
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.search_space import SearchSpace


def problem(prompt_tokens: int, output_tokens: int, **changes: Any) -> Problem:
    load = {"kind": "random", "requests": 4, "prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    written = {
        "name": "s",
        "model": "qwen3-8b",
        "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"},
        "parallel": {"tp": 1, "pp": 4},
        "workload": {**load, "concurrency": 1},
        "engine": {"flags": {"max_num_batched_tokens": 512}},
    }
    return resolve(SearchSpace.from_mapping({**written, **changes}))


def test_stages_wait_while_fewer_requests_decode_and_not_while_chunks_of_a_prompt_are_computed() -> None:
    assert list(stages_that_wait(problem(512, 32))) == [
        "4 stages for 1 request at once: while they decode, 3 or more wait"
    ]
    one_prompt = problem(8192, 1)
    assert list(stages_that_wait(one_prompt)) == []
    explained = explain(one_prompt, Candidate(one_prompt.default_partition, {}))
    assert explained.result.metric("mean_in_flight_batches") > 2  # type: ignore[operator]


def test_a_pipeline_that_holds_more_than_decoding_explains_is_not_told_that_it_cannot() -> None:
    """The ceiling of decoding is a quarter; chunks of one prompt are on several stages at once."""
    one_prompt, decoding = problem(8192, 1), problem(512, 128)
    fuller, within = (distance(it, Candidate(it.default_partition, {})) for it in (one_prompt, decoding))
    assert fuller.factors["fill"] > 2 * fuller.fill_ceiling
    assert "is all that" not in fuller.why
    assert "all requests decode as one group" not in fuller.partition
    assert within.factors["fill"] < 1.05 * within.fill_ceiling


def test_a_layout_without_a_pipeline_is_named_only_where_it_can_serve_the_load() -> None:
    def notes(of: Problem) -> list[str]:
        return list(is_a_pipeline_needed(ResolvedCandidate(of, Candidate(of.default_partition, {}))))

    assert notes(problem(512, 32)) == ["tp1-pp1-dp4 can serve this without a pipeline; partitune layouts compares them"]
    assert notes(problem(512, 32, model="llama-3.1-70b")) == []
    # 15.3 GiB of weights fit a card of 24 GiB, and a request of 131,072 tokens (18 GiB of KV) does not
    small_card = {"nodes": 1, "gpus_per_node": 4, "gpu": "RTX-4090"}
    long = {"flags": {"max_model_len": 40960, "gpu_memory_utilization": 0.8}}
    assert notes(problem(512, 32, cluster=small_card, engine=long)) == []
