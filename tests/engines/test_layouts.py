"""What may be combined, by engine, and how it is spelled. Every expectation stands in the engine's source."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.candidate import FlagValue
from partitune.costs.memory import MemoryModel
from partitune.engines.deployment import Deployment
from partitune.engines.sglang.engine import Sglang
from partitune.engines.vllm.engine import Vllm
from partitune.engines.vllm.kv_pages import cache_model
from partitune.errors import OutOfMemory
from partitune.fidelity.set_ups import published_problem, simulated
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Exchange, Layout, RankOrder
from partitune.models.architecture import Architecture
from partitune.models.reader import load_architecture
from partitune.planning.problem import Problem
from tests.small_models import architecture

VLLM, SGLANG = Vllm(), Sglang()
QWEN, K3, V3 = (load_architecture(name) for name in ("qwen3-235b-a22b", "kimi-k3", "deepseek-v3"))


def rules(
    layout: Layout, model: Architecture = V3, flags: dict[str, FlagValue] | None = None, runner: str = "auto"
) -> list[str]:
    start = Deployment("0.32.0", model, layout, gpu("H200"), flags=flags or {}, runner=runner)
    return [one.rule for one in VLLM.check(start)]


@pytest.mark.parametrize(
    ("layout", "model", "broken"),
    [
        (Layout(tp=8, pp=2), V3, []),
        (Layout(tp=8, dp=2, expert_ranks=16), V3, []),
        (Layout(tp=8, dp=2, expert_ranks=8), V3, ["expert-width"]),  # vLLM spreads over all ranks or none
        (Layout(tp=2, expert_ranks=2), load_architecture("llama-3.1-70b"), ["experts-missing"]),
        (Layout(tp=7), QWEN, ["heads-over-tp", "expert-cut"]),
        (Layout(tp=32), QWEN, []),  # 64 heads; 4 KV heads, 8 ranks with each; 1536 / 32
        (Layout(tp=8), architecture("f" * 8, heads=48, shards=6), ["kv-heads-over-tp"]),
        (Layout(dp=10), QWEN, ["expert-cut"]),  # 1536 wide over 10 ranks
        (Layout(dp=10, expert_ranks=10), QWEN, []),  # 128 experts over 10 ranks: 13 on the first eight
        # Decode context parallelism: config/model.py verify_with_parallel_config
        (Layout(tp=8, dcp=8), V3, []),
        (Layout(tp=8, dcp=3), V3, ["dcp"]),
        (Layout(tp=8, dcp=2), QWEN, []),
        (Layout(tp=8, dcp=4), QWEN, ["dcp"]),  # 8 ranks, 4 KV heads: two ranks a head
        (Layout(tp=4, dcp=2), QWEN, ["dcp"]),
        (Layout(tp=8, dcp=8), load_architecture("gpt-oss-120b"), ["dcp", "dcp"]),  # windows, and 8 KV heads
        (Layout(tp=8, dcp=8), K3, []),
        # Prefill context parallelism: v1/worker/gpu/pcp_manager.py
        (Layout(tp=4, pcp=2), V3, []),
        (Layout(tp=4, pcp=2, dcp=8), V3, ["pcp"]),  # only sparse latent attention
        (Layout(tp=4, pcp=2), QWEN, ["pcp"]),
        (Layout(tp=4, pcp=2, dp=2), V3, ["pcp"]),  # PRs 49246, 57075 are open
        (Layout(tp=4, pcp=2, dcp=8), load_architecture("deepseek-v3.2"), []),
        (Layout(tp=4, pcp=2), load_architecture("deepseek-v3.2"), ["pcp-graphs"]),
        (Layout(tp=4, pcp=2, dcp=4), load_architecture("deepseek-v3.2"), ["dcp"]),
        (Layout(tp=4, pcp=2), K3, ["pcp", "pcp-images"]),
        (Layout(dp=8, expert_ranks=8, all2all_backend="deepep"), V3, ["all2all-backend"]),  # SGLang's name
        (Layout(dp=8, expert_ranks=8, all2all_backend="moonep"), V3, ["all2all-backend"]),  # bf16 only
        (Layout(dp=8, expert_ranks=8, all2all_backend="moonep"), QWEN, []),
    ],
)
def test_vllms_rules_of_sizes(layout: Layout, model: Architecture, broken: list[str]) -> None:
    assert rules(layout, model) == broken


WIDE = Layout(dp=8, expert_ranks=8, all2all_backend="deepep_low_latency")


@pytest.mark.parametrize(
    ("layout", "flags", "runner", "broken"),
    [
        (WIDE, {"enable_eplb": True}, "auto", []),
        (Layout(tp=8), {"enable_eplb": True}, "auto", ["eplb"]),  # needs expert parallelism
        (Layout(dp=3, expert_ranks=3), {"enable_eplb": True}, "auto", ["eplb"]),  # 256 experts over 3
        (
            Layout(dp=3, expert_ranks=3),
            {"enable_eplb": True, "eplb_config": '{"num_redundant_experts": 2}'},
            "auto",
            [],
        ),
        (WIDE, {"eplb_config": '{"num_redundant_experts": 8}'}, "auto", ["eplb"]),
        (WIDE, {"enable_eplb": True, "eplb_config": '{"communicator": "torch_nccl"}'}, "auto", ["eplb"]),
        (WIDE, {"enable_eplb": True, "eplb_config": '{"communicator": "pynccl", "use_async": false}'}, "auto", []),
        (WIDE, {"enable_elastic_ep": True}, "auto", ["elastic-ep"]),
        (replace(WIDE, pp=2), {"enable_elastic_ep": True, "enable_eplb": True}, "auto", ["not-with-pipeline"]),
        (WIDE, {"enable_dbo": True}, "v2", []),
        (WIDE, {"enable_dbo": True}, "auto", ["dbo"]),  # falls back to the V1 runner silently
        (replace(WIDE, pp=2), {"enable_dbo": True}, "v2", ["dbo"]),
        (replace(WIDE, all2all_backend=None), {"enable_dbo": True}, "v1", ["dbo"]),
        (WIDE, {"enable_fault_tolerance": True}, "auto", ["fault-tolerance"]),  # a balancer inside the engine
        (WIDE, {"enable_fault_tolerance": True, "data_parallel_external_lb": True}, "auto", []),
        (
            replace(WIDE, all2all_backend="deepep_high_throughput"),
            {"enable_fault_tolerance": True, "data_parallel_external_lb": True},
            "auto",
            ["fault-tolerance"],
        ),
        (Layout(tp=4, pcp=2), {}, "v1", ["pcp"]),
    ],
)
def test_vllms_rules_of_sizes_and_flags(
    layout: Layout, flags: dict[str, FlagValue], runner: str, broken: list[str]
) -> None:
    assert rules(layout, V3, flags, runner) == broken


def test_every_violation_comes_at_once_with_its_source() -> None:
    start = Deployment(
        "0.32.0", K3, Layout(tp=5, pp=8, dp=2, pcp=2, dcp=3), gpu("H200"), flags={"enable_dbo": True}, runner="v2"
    )
    found = VLLM.check(start)
    assert {"heads-over-tp", "expert-cut", "dcp", "pcp", "dbo"} <= {one.rule for one in found}
    assert all(one.source for one in found)


def test_vllm_spells_a_layout() -> None:
    layout = Layout(tp=4, pp=2, dp=2, dcp=4, expert_ranks=8, all2all_backend="deepep_v2", all_reduce_backend="nccl")
    start = Deployment("0.32.0", V3, layout, gpu("H200"))
    assert VLLM.launch.serve_arguments("M", start)[3:] == (
        "--pipeline-parallel-size", "2", "--tensor-parallel-size", "4", "--data-parallel-size", "2",
        "--decode-context-parallel-size", "4", "--enable-expert-parallel", "--all2all-backend", "deepep_v2",
        "--disable-custom-all-reduce",
    )  # fmt: skip
    assert VLLM.launch.config_yaml(start)["enable-expert-parallel"] is True
    assert [one.rule for one in VLLM.check(replace(start, flags={"data_parallel_size": 4}))] == ["parallel-size"]


def test_sglang_spells_a_layout() -> None:
    """`tp_size` counts every rank of a stage; data ranks of a model with experts are attention data parallelism."""

    def words(layout: Layout, model: Architecture) -> dict[str, FlagValue]:
        return dict(SGLANG.launch.config_yaml(Deployment("0.5.23", model, layout, gpu("H200"))))

    wide = Layout(tp=2, pp=2, dp=4, expert_ranks=8, all2all_backend="deepep")
    assert words(wide, V3) == {
        "pp-size": 2, "tp-size": 8, "attn-dp-size": 4, "ep-size": 8, "moe-a2a-backend": "deepep"
    }  # fmt: skip
    assert words(Layout(tp=2, dp=4), load_architecture("qwen3-8b")) == {"pp-size": 1, "tp-size": 2, "dp-size": 4}
    assert words(Layout(tp=8, dcp=8), V3) == {"pp-size": 1, "tp-size": 8, "dcp-size": 8}
    assert words(Layout(tp=4, pcp=2), V3) == {
        "pp-size": 1, "tp-size": 8, "attn-cp-size": 2, "enable-prefill-cp": True
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "model", "flags", "broken"),
    [
        (Layout(tp=2, dp=4, expert_ranks=4), V3, {}, []),  # 4 of 8 ranks with experts of their own, each cut in two
        (Layout(tp=2, dp=4, expert_ranks=3), V3, {}, ["expert-width", "expert-width"]),
        (Layout(tp=2, dp=4, expert_ranks=4, all2all_backend="deepep"), V3, {}, ["all2all-backend"]),
        (Layout(tp=8, expert_ranks=8, all2all_backend="pplx"), V3, {}, ["all2all-backend"]),
        (Layout(tp=2, dp=4, expert_ranks=8, all2all_backend="flashinfer"), V3, {}, ["all2all-backend"]),
        (Layout(dp=8, expert_ranks=8, all2all_backend="flashinfer"), V3, {}, []),
        (Layout(tp=8, dcp=3), V3, {}, ["dcp"]),
        (Layout(tp=4, pcp=2), V3, {}, ["pcp-strategy"]),
        (Layout(tp=4, pcp=2), V3, {"cp_strategy": "interleave"}, []),
        (Layout(tp=4, pcp=2, dcp=2), V3, {"cp_strategy": "interleave"}, ["pcp"]),
        (Layout(tp=8, pp=2), V3, {"dwdp_size": 8}, ["not-with-pipeline"]),
        (Layout(tp=8, pp=2), V3, {"elastic_ep_backend": "mooncake"}, ["not-with-pipeline"]),
        (
            Layout(tp=4, pp=2, dp=2),
            V3,
            {"speculative_algorithm": "EAGLE", "SGLANG_ENABLE_PP_SPEC": True},
            ["draft-with-pipeline"],
        ),
    ],
)
def test_sglangs_rules(layout: Layout, model: Architecture, flags: dict[str, FlagValue], broken: list[str]) -> None:
    found = SGLANG.check(Deployment("0.5.23", model, layout, gpu("H200"), flags=flags))
    assert [one.rule for one in found] == broken


def test_sglangs_data_ranks_of_a_dense_model_stay_on_one_node() -> None:
    """0.5.23 `arg_groups/validation_hook.py`: multi-node data-parallel replicas are not supported."""
    start = Deployment("0.5.23", load_architecture("qwen3-8b"), Layout(tp=4, dp=4), gpu("H200"))
    assert [one.rule for one in SGLANG.check(replace(start, nodes=2))] == ["nodes"]
    assert SGLANG.check(start) == ()
    assert SGLANG.check(replace(start, architecture=V3, nodes=2)) == ()


def test_sglangs_attention_data_ranks_share_chunk_and_requests() -> None:
    """0.5.23 `arg_groups/parallel_hook.py` handle_data_parallelism, `kv_cache_configurator.py` resolve_max_num_reqs."""
    flags: dict[str, FlagValue] = {"chunked_prefill_size": 8192, "max_running_requests": 100}
    start = Deployment("0.5.23", V3, Layout(tp=2, pp=2, dp=4), gpu("H200"), flags=flags)
    found = SGLANG.effective_flags(start)
    assert (found["chunked_prefill_size"], found["max_running_requests"]) == (2048, 25)
    assert found["schedule_conservativeness"] == pytest.approx(0.3)
    flow = SGLANG.flow(start)
    assert (flow.step_tokens, flow.max_requests, flow.cohort_requests) == (2048, 25, 12)
    assert SGLANG.launch.config_yaml(start)["chunked-prefill-size"] == 8192  # the command line says the whole
    replicas = replace(start, architecture=load_architecture("qwen3-8b"))
    assert SGLANG.effective_flags(replicas)["chunked_prefill_size"] == 8192


@pytest.mark.parametrize(
    ("layout", "model", "exchange", "cut"),
    [
        (Layout(tp=8), V3, Exchange.REDUCE, False),
        (Layout(tp=8, expert_ranks=8), V3, Exchange.REDUCE, False),  # one data rank: tokens are everywhere
        (Layout(tp=4, dp=2), V3, Exchange.GATHER, False),
        (Layout(tp=4, dp=2, expert_ranks=8), V3, Exchange.GATHER, True),
        (Layout(tp=4, pp=2, dp=2, expert_ranks=8), V3, Exchange.GATHER, True),
        (Layout(tp=4, pp=2, dp=2, expert_ranks=8), K3, Exchange.GATHER, False),  # PR 54347 is open
        (Layout(tp=4, pp=1, dp=2, expert_ranks=8), K3, Exchange.GATHER, True),
        (Layout(dp=8, expert_ranks=8, all2all_backend="deepep_v2"), V3, Exchange.ROUTED, False),
        (Layout(tp=2, dp=4, expert_ranks=8, all2all_backend="moonep"), V3, Exchange.ROUTED, False),
        (Layout(dp=8), load_architecture("qwen3-8b"), Exchange.REDUCE, False),
    ],
)
def test_what_vllm_makes_of_the_sizes(layout: Layout, model: Architecture, exchange: Exchange, cut: bool) -> None:
    """vLLM 0.32 `config/parallel.py` use_sequence_parallel_moe, use_all2all; `models/kimi_k3/nvidia/model.py`."""
    found = VLLM.resolved_layout(layout, model, "0.33.0")
    assert (found.exchange, found.sequence_parallel_moe) == (exchange, cut)


@pytest.mark.parametrize(
    ("version", "backend", "cut"),
    [
        ("0.10.2", None, False),  # no use_sequence_parallel_moe in config/parallel.py
        ("0.11.2", None, True),
        ("0.17.1", "nixl_ep", False),
        ("0.18.1", "nixl_ep", True),
        ("0.22.1", "mori_low_latency", False),
        ("0.23.0", "mori_low_latency", True),
        ("0.28.0", "flashinfer_nvlink_one_sided", False),
        ("0.29.0", "flashinfer_nvlink_one_sided", True),
        ("0.30.0", "deepep_v2", False),
        ("0.31.0", "deepep_v2", True),
        ("0.33.0", "moonep", False),
    ],
)
def test_tokens_are_cut_over_tensor_ranks_from_a_release_on(version: str, backend: str | None, cut: bool) -> None:
    """`config/parallel.py` use_sequence_parallel_moe in the wheel of each release."""
    layout = Layout(tp=4, dp=2, expert_ranks=8, all2all_backend=backend)
    assert VLLM.resolved_layout(layout, V3, version).sequence_parallel_moe == cut


def _with_moonep(model: str, backend: str = "moonep") -> Problem:
    return published_problem({
        "model": model,
        "cluster": {"nodes": 1, "gpus_per_node": 8, "gpu": "H200"},
        "parallel": {"tp": 1, "pp": 1, "dp": 8, "expert_parallel": True, "all2all_backend": backend},
        "workload": {"kind": "random", "requests": 8, "prompt_tokens": 64, "output_tokens": 2, "concurrency": 8},
        "objectives": ["output_throughput_tok_s"],
    })  # fmt: skip


def test_moonep_keeps_every_expert_on_every_rank() -> None:
    """vLLM 0.33 `layers/fused_moe/prepare_finalize/moonep.py`, gather_moonep_weight_layout: all and four."""
    weights = []
    for backend in ("deepep_v2", "moonep"):
        posed = _with_moonep("qwen3-30b-a3b", backend)
        settings = VLLM.memory_settings(posed.start({}))
        weights.append(MemoryModel(posed.architecture, posed.placement, settings).stage(0, 0, 48).weight_bytes)
    assert weights[1] - weights[0] == pytest.approx(48 * 2 * 3 * 2048 * 768 * (128 + 4 - 128 / 8))


def test_moonep_takes_no_cuda_graph_and_comes_with_0_31() -> None:
    """vLLM 0.33 `config/vllm.py`: cudagraph_mode NONE, whatever was said."""
    start = _with_moonep("qwen3-30b-a3b").start({"enforce_eager": False})
    assert VLLM.check(start) == ()
    assert VLLM.memory_settings(start).graph_sizes == 0
    assert VLLM.memory_settings(_with_moonep("qwen3-30b-a3b", "deepep_v2").start({})).graph_sizes > 0
    assert [fault.rule for fault in VLLM.check(replace(start, version="0.30.0"))] == ["all2all-backend"]


def test_glm_5_2_does_not_fit_with_moonep() -> None:
    """1.4 TB of experts on every rank: what was simulated of it (880 tok/s) could not have been loaded."""
    with pytest.raises(OutOfMemory, match="weights miss the card by"):
        simulated(_with_moonep("glm-5.2"))


def test_where_data_ranks_lie() -> None:
    assert VLLM.rank_order(V3) is RankOrder.REPLICAS_OUTSIDE
    assert SGLANG.rank_order(V3) is RankOrder.REPLICAS_INSIDE
    assert SGLANG.rank_order(load_architecture("qwen3-8b")) is RankOrder.REPLICAS_OUTSIDE


def test_decode_context_parallelism_multiplies_what_a_page_holds() -> None:
    """vLLM 0.32 `v1/core/kv_cache_utils.py` resolve_dcp_kv_block_size: a block spans dcp times the tokens."""
    free = [20 << 30]
    one, eight = (
        VLLM.kv_cache(Deployment("0.32.0", V3, Layout(tp=8, dcp=dcp), gpu("H200")), (61,), free) for dcp in (1, 8)
    )
    assert (one.num_blocks, eight.block_size) == (eight.num_blocks, 8 * one.block_size)
    assert eight.tokens == pytest.approx(8 * one.tokens, rel=1e-3)
    pools = [
        SGLANG.kv_cache(Deployment("0.5.23", V3, Layout(tp=8, dcp=dcp), gpu("H200")), (61,), free) for dcp in (1, 8)
    ]
    assert pools[1].tokens == pytest.approx(8 * pools[0].tokens, rel=1e-3)


def test_the_state_of_a_hybrid_is_not_dealt_out() -> None:
    start = Deployment("0.32.0", K3, Layout(tp=8, dcp=8), gpu("B300"), flags={"max_model_len": 32768})
    caches = [cache for cache in cache_model(start).layers if cache is not None]
    sizes = {cache.kind.value: cache.block_size for cache in caches}
    assert sizes["tokens"] == 8 * sizes["state"]


def test_one_list_of_back_ends_an_engine() -> None:
    for engine, version, flag in ((VLLM, "0.32.0", "all2all_backend"), (SGLANG, "0.5.23", "moe_a2a_backend")):
        start = Deployment(version, V3, Layout(tp=8, expert_ranks=8, all2all_backend="deep_ep"), gpu("H200"))
        (by_key,) = (one.message for one in engine.check(start) if one.rule == "all2all-backend")
        written = replace(start, layout=Layout(tp=8, expert_ranks=8), flags={flag: "deep_ep"})
        (by_flag,) = (one.message for one in engine.check(written) if one.rule == "flag-value")
        allowed = by_key.partition("is not one of ")[2]
        assert "deepep_v2" in allowed
        assert allowed in by_flag
