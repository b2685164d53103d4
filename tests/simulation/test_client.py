"""Who is sent when: by arrival, by a free slot, and once an answer is there."""

from __future__ import annotations

import math

import pytest

from partitune.candidate import Candidate
from partitune.engines.scheduling import Simulation
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.simulation.request import Client, Request
from partitune.simulation.run import Run
from partitune.spec.search_space import SearchSpace

FIRST, SECOND, OTHER = (
    Request("first", 0.0, 8, 2),
    Request("second", 1.0, 16, 2, continues="first"),
    Request("other", 3.0, 8, 2),
)
WORKLOAD = {"kind": "random", "requests": 24, "prompt_tokens": 60, "output_tokens": 9, "turns": 4}


def test_an_answer_is_waited_for_where_it_is_late_and_nobody_else_is() -> None:
    client = Client([FIRST, SECOND, OTHER], None, waits=True)
    assert client.send() == (FIRST, 0.0)
    assert client.send() == (OTHER, 3.0)
    assert client.next_s == math.inf
    client.done(["first"], 7.0)
    assert client.send() == (SECOND, 7.0)


def test_who_does_not_wait_sends_at_the_arrival() -> None:
    client = Client([FIRST, SECOND, OTHER], None)
    assert [client.send() for _ in range(3)] == [(FIRST, 0.0), (SECOND, 1.0), (OTHER, 3.0)]


def test_the_next_turn_of_a_conversation_comes_before_another_conversation() -> None:
    talk = [Request("a1", 0.0, 8, 2), Request("a2", 0.0, 16, 2, continues="a1"), Request("b1", 0.0, 8, 2)]
    client = Client(talk, 1, waits=True)
    sent = []
    for now in (1.0, 2.0, 3.0):
        request, at = client.send()
        sent.append((request.id, at))
        client.done([request.id], now)
    assert sent == [("a1", 0.0), ("a2", 1.0), ("b1", 2.0)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("load", [{"concurrency": 3}, {"request_rate_req_s": 200.0}])
def test_no_turn_is_sent_before_the_answer_that_it_holds(engine: str, load: dict[str, float]) -> None:
    problem = resolve(
        SearchSpace.from_mapping(
            {
                "name": "s",
                "model": "qwen3-8b",
                "cluster": {"nodes": 1, "gpus_per_node": 4, "gpu": "L40S"},
                "engine": {"name": engine},
                "parallel": {"tp": 2, "pp": 2},
                "workload": {**WORKLOAD, **load},
            }
        )
    )
    times = {each.id: each for each in simulated(problem).requests}
    waited = 0
    for request in problem.load.requests:
        if request.continues is not None:
            sent_s, answered_s = times[request.id].sent_s, times[request.continues].finish_s
            assert sent_s >= max(request.arrival_s, answered_s)
            waited += sent_s == answered_s
    assert waited


def simulated(problem: Problem) -> Run:
    resolved = ResolvedCandidate(problem, Candidate(problem.default_partition))
    costs, load = problem.costs.stage_costs(problem.default_partition), problem.load
    simulation = Simulation(load.requests, resolved.deployment, resolved.kv_cache, costs, load.concurrency)
    return problem.engine.run(simulation)
