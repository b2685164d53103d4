from __future__ import annotations

import numpy as np
import pytest

from partitune.simulation.metrics import metrics
from partitune.simulation.run import RequestTimes, Run


def run(*requests: RequestTimes, gaps: tuple[float, ...] = ()) -> Run:
    return Run(
        requests=requests,
        inter_token_s=np.array(gaps, dtype=np.float64),
        makespan_s=8.0,
        compute_s=(4.0, 2.0),
        transfer_s=(1.0, 1.0),
        batches=4,
        empty_steps=3,
        decode_steps=2,
        decode_tokens=3,
        batch_tokens=103,
        preemptions=1,
        in_pipeline_s=12.0,
    )


def test_figures_as_the_benchmark_defines_them() -> None:
    # Sent at 1 after waiting for a slot: 2 s to the first token, then 4 tokens in 2 s. The second made one token only.
    found = metrics(
        run(RequestTimes("a", 50, 5, 1.0, 3.0, 5.0), RequestTimes("b", 49, 1, 0.0, 1.0, 1.0), gaps=(0.2, 0.4, 0.6, 0.8))
    )
    assert found["makespan_s"] == 5.0
    assert found["output_throughput_tok_s"] == 6 / 5
    assert found["total_throughput_tok_s"] == (6 + 99) / 5
    assert found["request_throughput_req_s"] == 2 / 5
    assert found["ttft_mean_ms"] == 1500.0
    assert found["ttft_p50_ms"] == 1500.0
    assert found["ttft_p90_ms"] == pytest.approx(1900.0)  # linear between 1000 and 2000
    assert found["ttft_p99_ms"] == pytest.approx(1990.0)
    assert found["tpot_mean_ms"] == 500.0  # b is left out
    assert found["tpot_p99_ms"] == 500.0
    assert found["itl_mean_ms"] == pytest.approx(500.0)
    assert found["itl_p50_ms"] == pytest.approx(500.0)
    assert found["e2e_mean_ms"] == 2500.0
    assert found["preemptions"] == 1.0
    assert found["mean_in_flight_batches"] == 1.5
    assert found["mean_decode_batch"] == 1.5
    assert found["mean_batch_tokens"] == 103 / 4


def test_what_nobody_has_is_left_out() -> None:
    found = metrics(run(RequestTimes("a", 50, 1, 0.0, 3.0, 3.0)))
    assert not [name for name in found if name.startswith(("tpot", "itl"))]
    assert found["ttft_p50_ms"] == 3000.0


def test_a_stage_computes_hands_over_or_waits() -> None:
    assert run().wait_s == (3.0, 5.0)


def test_goodput_counts_the_requests_that_keep_every_limit() -> None:
    found = run(
        RequestTimes("quick", 50, 5, 1.0, 2.0, 4.0),  # ttft 1000, tpot 500, e2e 3000
        RequestTimes("late", 50, 5, 0.0, 2.5, 4.5),  # ttft 2500
        RequestTimes("slow", 50, 3, 0.0, 1.0, 8.0),  # tpot 3500
        RequestTimes("one token", 50, 1, 0.0, 1.0, 1.0),  # tpot 0, as in vLLM's benchmark
    )
    assert metrics(found, {"ttft_ms": 2000.0})["goodput_req_s"] == 3 / 8
    assert metrics(found, {"ttft_ms": 2000.0, "tpot_ms": 500.0})["goodput_req_s"] == 2 / 8
    assert metrics(found, {"e2e_ms": 1000.0})["goodput_req_s"] == 1 / 8
    assert "goodput_req_s" not in metrics(found)
