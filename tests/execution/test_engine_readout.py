"""What runs, read from recorded pages and logs of vLLM 0.32.0; SGLang's lines are composed as in its 0.5.23 source."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.engines.readout import Counters, LogReading
from partitune.errors import BenchmarkFailed
from partitune.execution.readout.engine_readout import read_logs, read_metrics
from tests.engine_output import SGLANG, VLLM, recorded, sglang, vllm


def test_the_recorded_page_gives_the_figures_the_engine_logged() -> None:
    after = read_metrics(recorded("metrics_after.txt"), VLLM.metrics)
    assert after == Counters(
        kv_blocks=512,
        kv_tokens=65536,  # "CPU KV cache size: 65,536 tokens" in the log of the same start
        block_size=128,
        prompt_tokens=4099,
        generation_tokens=276,
        prefix_queries=0,
        prefix_hits=0,
        preemptions=0,
        draft_tokens=None,
        accepted_tokens=None,
        running=0,
    )
    assert after.kv_tokens == read_logs([recorded("served.log")], VLLM).kv_tokens
    before = read_metrics(recorded("metrics_before.txt"), VLLM.metrics)
    # Between the two pages a client received 12 and 256 tokens for 12 x 256 and 16 x 64 prompt tokens.
    assert (after.generation_tokens or 0) - (before.generation_tokens or 0) == 12 + 256
    assert (after.prompt_tokens or 0) - (before.prompt_tokens or 0) == 12 * 256 + 16 * 64


def test_data_parallel_engines_are_summed_and_the_smallest_cache_counts() -> None:
    page = recorded("metrics_after.txt")
    two = page + page.replace('engine="0"', 'engine="1"').replace('num_gpu_blocks="512"', 'num_gpu_blocks="500"')
    both = read_metrics(two, VLLM.metrics)
    assert (both.generation_tokens, both.kv_blocks) == (552, 500)


def test_stages_of_sglang_repeat_one_another() -> None:
    """srt/observability/metrics_collector.py: the scheduler of every stage exports the same requests."""
    labels = 'model_name="m",engine_type="unified",tp_rank="0",pp_rank="{}",moe_ep_rank="0"'
    page = "".join(
        f"sglang:num_running_reqs{{{labels.format(stage)}}} 7.0\n"
        f"sglang:max_total_num_tokens{{{labels.format(stage)}}} 40000.0\n"
        f"sglang:page_size{{{labels.format(stage)}}} 64.0\nsglang:num_pages{{{labels.format(stage)}}} 625.0\n"
        for stage in range(4)
    )
    page += 'sglang:prompt_tokens_total{model_name="m",is_streaming="true"} 100.0\n'
    page += 'sglang:cached_tokens_total{model_name="m",cache_source="device"} 30.0\n'
    page += 'sglang:cached_tokens_total{model_name="m",cache_source="host"} 3.0\n'
    found = read_metrics(page, SGLANG.metrics)
    assert (found.running, found.kv_tokens, found.block_size, found.kv_blocks) == (7, 40000, 64, 625)
    assert (found.prefix_queries, found.prefix_hits, found.preemptions) == (100, 33, None)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("", "found no metric at all"),
        ("<html>404 Not Found</html>", "such as '<html>404 Not Found</html>'"),
        ("python_info 1\n", "such as 'python_info 1'"),
        ("vllm:num_requests_running NaN\n", "num_requests_running is nan"),
        ("vllm:generation_tokens_total -3\n", "generation_tokens_total is -3"),
        ('vllm:cache_config_info{num_gpu_blocks="many"} 1\n', "num_gpu_blocks='many'"),
        ("vllm:num_requests_running{ 1\n", "Prometheus' text format"),
        ("vllm:x 1\n" * 2_000_000, "more than any metrics page"),
    ],
)
def test_a_page_that_cannot_be_read_is_named(page: str, said: str) -> None:
    with pytest.raises(BenchmarkFailed, match=f"^http://n0/metrics: .*(?:{said})"):
        read_metrics(page, VLLM.metrics, "http://n0/metrics")


def test_the_recorded_log_says_where_everything_ran() -> None:
    assert read_logs([recorded("served.log")], VLLM) == LogReading(
        node_of_stage={0: (0,), 1: (0,)},
        weights_gib={},
        own_split=None,
        kv_tokens=65536,
        is_async=False,
        runner="v1",
    )


def test_two_nodes_give_the_order_of_the_stages() -> None:
    """distributed/parallel_state.py and v1/worker/gpu/model_runner.py; node 1 was started as rank 0 by mistake."""
    place = (
        "rank {} in world size 4 is assigned as DP rank 0, PP rank {}, PCP rank 0, TP rank {}, ETP rank 0, EP rank N/A"
    )
    took = "Model loading took {} GiB memory and 31.5 seconds"
    logs = [
        vllm(1, "Worker", place.format(2, 1, 0), "INFO")
        + vllm(2, "Worker_PP1_TP0", took.format(20.5), "INFO")
        + vllm(2, "Worker_PP1_TP1", took.format(20.25), "INFO"),
        vllm(1, "Worker", place.format(0, 0, 0), "INFO")
        + vllm(1, "Worker_PP0_TP0", "Using V2 Model Runner", "INFO")
        + vllm(2, "Worker_PP0_TP0", took.format(30.0), "INFO"),
    ]
    found = read_logs(logs, VLLM)
    assert found.node_of_stage == {0: (1,), 1: (0,)}
    assert found.weights_gib == {(1, 0): 20.5, (1, 1): 20.25, (0, 0): 30.0}
    assert found.runner == "v2"


def test_a_split_the_engine_made_itself_is_seen() -> None:
    """distributed/utils.py: it is logged only where the engine was given no partition (vllm#36836)."""
    line = (
        "Hidden layers were unevenly partitioned: [31,30]. This can be manually overridden using the "
        "VLLM_PP_LAYER_PARTITION environment variable"
    )
    assert read_logs([vllm(1, "Worker_PP0", line, "INFO")], VLLM).own_split == (31, 30)
    assert read_logs([recorded("served.log")], VLLM).own_split is None  # 8,8 was given


def test_sglang_says_memory_per_stage() -> None:
    """srt/model_executor/model_runner.py, srt/managers/scheduler.py, srt/entrypoints/http_server.py."""
    log = "".join(
        sglang(1, f" PP{stage} TP0", f"Load weight end. elapsed=9.1 s, type=M, avail mem=9.00 GB, mem usage={size} GB.")
        for stage, size in enumerate(("12.50", "14.00"))
    )
    found = read_logs([log + sglang(2, " PP0 TP0", "max_total_num_tokens=40000, chunked_prefill_size=2048")], SGLANG)
    assert found.weights_gib == {(0, 0): 12.5, (1, 0): 14.0}
    assert (found.kv_tokens, found.node_of_stage) == (40000, {0: (0,), 1: (0,)})


def test_a_record_behind_a_progress_bar_is_seen() -> None:
    """tqdm ends without a line end, so the next record stands on its line."""
    bar = "Capturing CUDA graphs:  50%|███  | 1/2 [00:01]\rCapturing CUDA graphs: 100%|█████| 2/2 [00:02<00:00]"
    record = vllm(1, "EngineCore", "GPU KV cache size: 4,260,000 tokens, Maximum concurrency", "INFO")
    assert read_logs([bar + record], VLLM).kv_tokens == 4_260_000


def test_the_server_says_whether_it_schedules_ahead() -> None:
    page = {"vllm_config": {"scheduler_config": {"async_scheduling": True}}}
    assert VLLM.schedules_ahead(page) is True
    for other in ({"vllm_config": "model=…"}, {}, {"vllm_config": {"scheduler_config": None}}):
        assert VLLM.schedules_ahead(other) is None


_LINES = st.sampled_from(
    [line for name in ("served.log", "metrics_after.txt") for line in recorded(name).splitlines()]
    + ["Model loading took 1.2.3 GiB", "KV cache size: ,,, tokens", "Hidden layers were unevenly partitioned: [,]"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(_LINES, st.text(max_size=40)), max_size=15), st.integers(0, 200))
def test_nothing_but_the_error_tree_is_raised(lines: list[str], cut: int) -> None:
    text = "\n".join(lines)[cut:]
    read_logs([text, text[::-1]], VLLM)
    try:
        found = read_metrics(text, VLLM.metrics)
    except BenchmarkFailed as error:
        message = str(error)
    else:
        message = "/metrics: "
        assert all(value is None or value >= 0 for value in (found.running, found.kv_blocks, found.prefix_hits))
    assert message.startswith("/metrics: ")


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300))
def test_any_bytes_are_a_page_or_a_reason(page: bytes) -> None:
    try:
        read_metrics("vllm:x 1\nvllm:num_requests_running" + page.decode(errors="replace"), VLLM.metrics)
    except BenchmarkFailed:
        return
