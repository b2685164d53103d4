"""Results of load generators: recorded files of vLLM 0.32.0, and the others' keys as their source writes them."""

from __future__ import annotations

import json
import math
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.errors import BenchmarkFailed
from partitune.execution.readout.bench_results import median_metrics, read_bench
from partitune.execution.server.load_generators import LOAD_GENERATORS
from partitune.spec.metrics import METRICS
from tests.engine_output import recorded
from tests.strategies import json_values

VLLM, SGLANG, GUIDELLM = (tool.format for tool in LOAD_GENERATORS.values())
BENCH = recorded("bench.json")
#: Smallest file that is a result.
LEAST = {"duration": 2.0, "completed": 4, "total_input_tokens": 40, "total_output_tokens": 20}


def test_a_recorded_result_in_our_names() -> None:
    found = read_bench(VLLM, BENCH)
    raw = json.loads(BENCH)
    assert (found.sent, found.completed, found.failed) == (16, 16, 0)
    assert (found.input_tokens, found.output_tokens) == (16 * 64, 16 * 16)
    elsewhere = {"kv_tokens", "kv_blocks", "cost_per_million_output_tokens_usd", "energy_per_million_output_tokens_kwh"}
    assert set(found.metrics) == set(METRICS) - elsewhere - {"goodput_req_s"}  # null: no limits were given to the tool
    assert found.metrics["output_throughput_tok_s"] == pytest.approx(raw["output_throughput"])
    assert found.metrics["total_throughput_tok_s"] == pytest.approx(raw["total_token_throughput"])
    assert found.metrics["request_throughput_req_s"] == pytest.approx(raw["request_throughput"])
    assert found.metrics["makespan_s"] == raw["duration"]
    assert found.metrics["ttft_p99_ms"] == raw["p99_ttft_ms"]
    assert found.metrics["tpot_p50_ms"] == raw["median_tpot_ms"]
    assert found.metrics["itl_mean_ms"] == raw["mean_itl_ms"]
    assert found.metrics["e2e_p90_ms"] == raw["p90_e2el_ms"]
    assert found.longest_gap_s == max(gap for stream in raw["itls"] for gap in stream)
    assert found.errors == ()


def test_what_was_not_measured_is_no_zero_that_wins() -> None:
    """One output token a request: the recorded file says a mean TPOT of 0.0 ms."""
    text = recorded("bench_prefill.json")
    assert json.loads(text)["mean_tpot_ms"] == 0.0
    found = read_bench(VLLM, text)
    assert not [name for name in found.metrics if name.startswith(("tpot", "itl"))]
    assert found.metrics["ttft_p99_ms"] == pytest.approx(3630.07, abs=0.01)
    with pytest.raises(BenchmarkFailed, match=r"^run\.json: no value for tpot_p50_ms; .* median_tpot_ms, p50_tpot_ms$"):
        read_bench(VLLM, text, "run.json", needed=["ttft_p99_ms", "kv_tokens", "tpot_p50_ms"])
    with pytest.raises(BenchmarkFailed, match=r"e2e_p99_ms; looked for the keys p99_e2el_ms"):
        read_bench(VLLM, text, needed=["e2e_p99_ms"])


def test_sglang_and_its_other_names() -> None:
    """sglang/benchmark/serving.py: one object a line, appended to those of other runs."""
    run = {
        "tag": None,
        "server_info": {"internal_states": [{"nested": [1]}]},
        **LEAST,
        "output_throughput": 10.0,
        "total_throughput": 30.0,
        "mean_e2e_latency_ms": 11.0,
        "median_e2e_latency_ms": 10.0,
        "p90_e2e_latency_ms": 20.0,
        "p99_e2e_latency_ms": 30.0,
        "median_ttft_ms": 4.0,
        "p99_itl_ms": 9.0,
        "accept_length": None,
    }
    found = read_bench(SGLANG, json.dumps(run) + "\n")
    assert (found.sent, found.failed, found.completed) == (None, None, 4)
    assert dict(found.metrics) == {
        "makespan_s": 2.0,
        "request_throughput_req_s": 2.0,
        "output_throughput_tok_s": 10.0,
        "total_throughput_tok_s": 30.0,
        "ttft_p50_ms": 4.0,
        "itl_p99_ms": 9.0,
        "e2e_mean_ms": 11.0,
        "e2e_p50_ms": 10.0,
        "e2e_p90_ms": 20.0,
        "e2e_p99_ms": 30.0,
    }


def test_guidellm_and_its_other_meanings() -> None:
    """guidellm 0.8.1: request_latency in seconds; inter-token latency per request is what others call TPOT."""

    def summary(mean: float) -> dict[str, object]:
        values = {"mean": mean, "median": mean - 1, "percentiles": {"p90": mean + 1, "p99": mean + 2}}
        return {"successful": {**values, "total_sum": 4 * mean}, "errored": {"mean": 999.0}}

    metrics = {
        "request_totals": {"successful": 4, "errored": 1, "incomplete": 0, "total": 5},
        "prompt_token_count": summary(10),
        "output_token_count": summary(5),
        "time_to_first_token_ms": summary(50),
        "inter_token_latency_ms": summary(7),
        "time_per_output_token_ms": summary(17),
        "request_latency": summary(2),
    }
    report = {"metadata": {}, "benchmarks": [{"duration": 4.0, "metrics": metrics}]}
    found = read_bench(GUIDELLM, json.dumps(report, indent=1))
    assert (found.sent, found.completed, found.failed, found.output_tokens) == (5, 4, 1, 20)
    assert found.metrics["output_throughput_tok_s"] == 5.0
    assert found.metrics["total_throughput_tok_s"] == 15.0
    assert (found.metrics["ttft_p50_ms"], found.metrics["ttft_p99_ms"]) == (49, 52)
    assert found.metrics["tpot_mean_ms"] == 7
    assert found.metrics["e2e_p90_ms"] == 3000
    assert "itl_mean_ms" not in found.metrics
    with pytest.raises(BenchmarkFailed, match="this tool does not measure itl"):
        read_bench(GUIDELLM, json.dumps(report), needed=["itl_p99_ms"])
    with pytest.raises(BenchmarkFailed, match="`benchmarks`, found 0"):
        read_bench(GUIDELLM, '{"benchmarks": []}')
    sweep = {"benchmarks": report["benchmarks"] * 3}  # type: ignore[operator]
    with pytest.raises(BenchmarkFailed, match=r"^g\.json: .*found 3; allowed: a run with one rate.*, not a sweep$"):
        read_bench(GUIDELLM, json.dumps(sweep), "g.json")


def result_of(**changes: object) -> str:
    """The recorded file with keys changed; None takes a key out."""
    raw = {**json.loads(BENCH), **changes}
    return json.dumps({key: value for key, value in raw.items() if value is not None})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found ''"),
        ("Traceback (most recent call last):\n  …", "looked for a JSON object"),
        ("[1, 2]", "looked for a JSON object"),
        (BENCH[:-1], "line 1 is not complete JSON"),
        (BENCH[: len(BENCH) // 2], "line 1 is not complete JSON"),
        (f"{BENCH}\n{BENCH[:300]}", "line 2 is not complete JSON"),
        (f"{BENCH}{BENCH[:300]}", "stands behind it"),
        ("{" * 100_000, "is not complete JSON"),
        ('{"a": ' * 50_000, "is not complete JSON"),
        ('{"duration": ' + "9" * 5000 + "}", "is not complete JSON"),
        ("{}", "completed"),
        (result_of(duration=None), "looked for the keys duration"),
        (result_of(duration=0), "no value for duration"),
        (result_of(completed=None), "looked for the keys completed"),
        (result_of(total_output_tokens=None, total_generated_tokens=256), "looked for the keys total_output_tokens"),
        (result_of(mean_ttft_ms=math.nan), "mean_ttft_ms is nan"),
        (result_of(p99_itl_ms=math.inf), "p99_itl_ms is inf"),
        (result_of(duration="2.5"), "duration is '2.5'; looked for a number"),
        (result_of(completed=True), "completed is True"),
        (result_of(completed=15.5), "whole number"),
        (result_of(failed=-1), "failed is -1"),
        (result_of(median_ttft_ms=[1]), r"median_ttft_ms is \[1\]"),
        (result_of(total_output_tokens=10**30), "total_output_tokens is 1000"),
        (result_of(output_throughput=2083.0), "output_throughput is 2083, but counts and duration give 101.7"),
        (result_of(itls=[[0.1, None]]), "itls holds None"),
        (json.dumps({"completed": 1, "failed": 99, "output_throughput": 44, "mean_ttft_ms": 80}), "keys total_input"),
    ],
)
def test_what_cannot_be_trusted_names_file_and_key(text: str, said: str) -> None:
    with pytest.raises(BenchmarkFailed, match=rf"^w3\.json: .*{said}"):
        read_bench(VLLM, text, "w3.json")


def test_other_lines_are_passed_over_json_or_not() -> None:
    result = json.dumps({**LEAST, "completed": 3})
    log = "INFO starting\n{'python': 'dict'}\n" + json.dumps({"level": "info", "completed_at": 1}) + "\n"
    assert read_bench(VLLM, log + result + "\n" + json.dumps({"level": "info", "msg": "done"}) + "\n").completed == 3
    assert read_bench(VLLM, "\ufeff" + json.dumps(LEAST, indent=2) + "\nnanobind: leaked 4 instances!\n").completed == 4
    assert read_bench(VLLM, "\ufffd\ufffd\n" + json.dumps(LEAST)).completed == 4


def test_of_several_results_none_is_silently_taken() -> None:
    """vLLM's --append-result and SGLang's files after a second run: the last may be another candidate's."""
    text = "started\n" + json.dumps(LEAST) + "\n" + json.dumps({**LEAST, "completed": 3}) + "\n"
    for form in (VLLM, SGLANG):
        with pytest.raises(
            BenchmarkFailed, match=r"^w\.json: 2 results \(lines 2, 3\); allowed: one, that of this run$"
        ):
            read_bench(form, text, "w.json")


def streamed(gaps_ms: list[float], tokens: int | None = None, **changes: object) -> str:
    """A result of one request whose chunks came so many milliseconds apart, as vLLM's tool writes it."""
    tokens = len(gaps_ms) + 1 if tokens is None else tokens
    mean = sum(gaps_ms) / len(gaps_ms)
    itl = {"mean_itl_ms": mean, "median_itl_ms": statistics.median(gaps_ms), "p99_itl_ms": max(gaps_ms)}
    counts = {"duration": 30.0, "completed": 1, "total_input_tokens": 10, "total_output_tokens": tokens}
    rest = {"median_ttft_ms": 100.0, "median_tpot_ms": sum(gaps_ms) / (tokens - 1)}
    return json.dumps({**counts, **rest, **itl, "itls": [[gap / 1000 for gap in gaps_ms]], **changes})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        # What a proxy that collected made of it: median 0.005 ms at a mean of 14.9 ms.
        (streamed([0.005, 0.005, 44.69] * 40), "80 of 120 gaps are shorter than 0.75 ms"),
        (streamed([0.005, 0.005, 44.69] * 40, itls=None), "half of the gaps are 0.005 ms or less, at a mean of 14.9"),
        (streamed([0.05, 20.0, 20.0] * 40), "40 of 120 gaps are shorter"),
        # vLLM's --stream-interval, or drafted tokens: several in a chunk.
        (streamed([40.0] * 30, tokens=121), "30 gaps, where 120 lie between the tokens"),
    ],
)
def test_gaps_between_network_reads_are_no_gaps_between_tokens(text: str, why: str) -> None:
    found = read_bench(VLLM, text, "w.json")
    assert found.remark.startswith(f"streams came in bursts: {why}")
    assert not [name for name in found.metrics if name.startswith("itl")]
    assert found.metrics["ttft_p50_ms"] == 100
    assert found.metrics["tpot_p50_ms"] > 1
    with pytest.raises(BenchmarkFailed, match=r"^w\.json: itl_p99_ms cannot be used: streams came in bursts"):
        read_bench(VLLM, text, "w.json", needed=["ttft_p50_ms", "itl_p99_ms"])


def test_answers_that_came_whole_have_no_first_token() -> None:
    text = streamed([0.02] * 127)
    found = read_bench(VLLM, text)
    assert found.remark == "answers came whole, not as streams (0.02 ms a token)"
    assert not [name for name in found.metrics if name.startswith(("itl", "tpot", "ttft"))]
    with pytest.raises(BenchmarkFailed, match="ttft_p50_ms cannot be used: answers came whole"):
        read_bench(VLLM, text, needed=["ttft_p50_ms"])


@pytest.mark.parametrize(
    "gaps_ms",
    [
        [0.6] * 100,  # a tiny model
        [8.0] * 90 + [900.0] * 10,  # decoding that waits for the prefills of others
        [0.02, 16.0, 8.0, 8.0, 8.0] * 20,  # a busy client reads two tokens at once now and then
    ],
)
def test_streams_that_came_token_by_token_keep_their_gaps(gaps_ms: list[float]) -> None:
    found = read_bench(VLLM, streamed(gaps_ms))
    assert (found.remark, found.metrics["itl_p50_ms"]) == ("", statistics.median(gaps_ms))
    assert read_bench(VLLM, BENCH).remark == ""


def test_goodput_is_the_tools_and_none_of_it_is_0() -> None:
    for tool in ("vllm", "sglang"):
        found = read_bench(
            LOAD_GENERATORS[tool].format, json.dumps({**LEAST, "request_goodput": 0.0}), needed=["goodput_req_s"]
        )
        assert found.metrics["goodput_req_s"] == 0.0
    with pytest.raises(BenchmarkFailed, match="goodput_req_s; looked for the keys request_goodput"):
        read_bench(VLLM, json.dumps({**LEAST, "request_goodput": None}), needed=["goodput_req_s", "kv_tokens"])


def test_a_key_with_a_colon_too_much_is_read() -> None:
    """A release of a tool wrote it so (InferenceX PR 339)."""
    assert read_bench(VLLM, json.dumps({**LEAST, "request_goodput:": 5})).metrics["goodput_req_s"] == 5.0


def test_errors_of_requests_are_kept_short_and_once() -> None:
    errors = ["", "Not Found", "Not Found", "x" * 5000, 7, "third", "fourth"]
    found = read_bench(VLLM, json.dumps({**LEAST, "errors": errors}))
    assert found.errors == ("Not Found", "x" * 200, "third")


def test_the_median_over_windows_is_of_what_all_have() -> None:
    windows = [
        read_bench(VLLM, json.dumps({**LEAST, "duration": duration, "mean_ttft_ms": ttft}))
        for duration, ttft in ((2.0, 5.0), (4.0, 0.0), (5.0, 6.0))
    ]
    found = median_metrics(windows)
    assert (found["makespan_s"], found["output_throughput_tok_s"]) == (4.0, 5.0)
    assert "ttft_mean_ms" not in found
    assert median_metrics([]) == {}


_KEYS = st.sampled_from([*json.loads(BENCH), "benchmarks", "metrics", "request_goodput:"])
_JSON = json_values(st.text(max_size=5), keys=_KEYS)


@settings(max_examples=120, deadline=None)
@given(
    st.sampled_from([*LOAD_GENERATORS]),
    st.dictionaries(_KEYS, _JSON, max_size=8),
    st.integers(0, 60),
    st.integers(0, 60),
)
def test_nothing_but_the_error_tree_is_raised(tool: str, changes: dict[str, object], cut: int, extra: int) -> None:
    text = json.dumps({**json.loads(BENCH), **changes})
    told: list[str] = []
    for damaged in (text, text[cut:], text[: len(text) - cut], text[:extra] + text):
        try:
            found = read_bench(LOAD_GENERATORS[tool].format, damaged, "w.json", needed=["ttft_p99_ms"])
        except BenchmarkFailed as error:
            told.append(str(error))
        else:
            assert all(math.isfinite(value) and value >= 0 for value in found.metrics.values())
            assert found.metrics["ttft_p99_ms"] > 0
    assert all(message.startswith("w.json: ") for message in told)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([*LOAD_GENERATORS]), st.binary(max_size=200))
def test_any_bytes_are_a_result_or_a_reason(tool: str, text: bytes) -> None:
    with pytest.raises(BenchmarkFailed):
        read_bench(LOAD_GENERATORS[tool].format, text.decode(errors="replace"))
