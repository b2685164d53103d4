"""Flags that change how weights and KV are stored change bytes and times; where a checkpoint differs: refused."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from partitune.candidate import Candidate, FlagValue
from partitune.costs.cost_model import decode
from partitune.engines.deployment import Deployment
from partitune.engines.registry import engine
from partitune.engines.sglang.weights import QUANTISING as SGLANG
from partitune.engines.stored import FORMATS
from partitune.engines.vllm.state_types import state_bytes as vllm_state_bytes
from partitune.engines.vllm.weights import QUANTISING as VLLM
from partitune.errors import InfeasibleSpace, SpecError
from partitune.hardware.generations import Generation
from partitune.hardware.gpus import GPUS, gpu
from partitune.hardware.links import LINKS, link_to_host
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture
from partitune.planning.planner import Planner, stage_bounds
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from tests.flag_reference import space

GIB = 1 << 30


def start(model: str, flags: Mapping[str, FlagValue], name: str = "vllm", version: str = "0.33.0") -> Deployment:
    return Deployment(version, load_architecture(model), Layout(tp=2), gpu("H200"), flags)


def problem(name: str, kind: str) -> Problem:
    return resolve(space(name, kind))


def resolved(posed: Problem, **flags: FlagValue) -> ResolvedCandidate:
    return ResolvedCandidate(posed, Candidate(posed.default_partition, flags))


def decode_s(posed: Problem, **flags: FlagValue) -> float:
    candidate = resolved(posed, **flags)
    return candidate.problem.costs.stage_costs(candidate.partition).compute_s(decode(16, 4096))[0]


class TestQuantization:
    @pytest.mark.parametrize(("name", "flag"), [("vllm", "fp8_per_tensor"), ("sglang", "fp8")])
    def test_llama_8b_in_fp8_weighs_what_the_engine_loads(self, name: str, flag: str) -> None:
        # vLLM's documentation of FP8: "Loading model weights took 8.4596 GB" (GiB) for Meta-Llama-3-8B, one scale a
        # matrix; here stands one a channel.
        stored = engine(name).stored(start("llama-3.1-8b", {"quantization": flag}, name, "0.33.0"))
        assert stored.weight_bytes / GIB == pytest.approx(8.4596, rel=1e-3)

    def test_every_format_is_read(self) -> None:
        assert {*VLLM.online.values(), *SGLANG.online.values()} == set(FORMATS)

    @pytest.mark.parametrize(
        ("flag", "bits_dense", "bits_experts"),
        [("fp8_per_block", 8, 8), ("mxfp8", 8.25, 8.25), ("mxfp4", 4.25, 4.25), ("experts_int8", 16, 8),
         ("int8_per_channel_weight_only", 16, 8), ("nvfp4_per_token", 16, 4.5)],
    )  # fmt: skip
    def test_bits_of_a_mixture(self, flag: str, bits_dense: float, bits_experts: float) -> None:
        stored = engine("vllm").stored(start("qwen3-30b-a3b", {"quantization": flag}))
        layer = stored.layers[3]
        projections = sum(matrix.outputs * matrix.inputs for matrix in layer.attention.matrices)
        assert 8 * layer.attention.weight_bytes / projections == pytest.approx(bits_dense, rel=0.01)
        assert 8 * layer.ffn.expert_bytes / layer.ffn.expert_params == pytest.approx(bits_experts, rel=0.01)
        assert layer.ffn.weight_bytes == start("qwen3-30b-a3b", {}).architecture.layers[3].ffn.weight_bytes  # router

    @pytest.mark.parametrize(
        ("name", "version", "model", "flag", "message"),
        [
            ("vllm", "0.33.0", "qwen3-8b", "fp8", "write fp8_per_tensor"),
            ("vllm", "0.30.0", "qwen3-8b", "fp8", ""),  # online until 0.31
            ("vllm", "0.33.0", "qwen3-8b", "awq", "needs a checkpoint that is stored so"),
            ("vllm", "0.33.0", "deepseek-v3", "fp8", ""),
            ("vllm", "0.33.0", "deepseek-v3", "mxfp4", "quantised by fp8; leave the flag out"),
            ("vllm", "0.33.0", "gpt-oss-20b", "gpt_oss_mxfp4", ""),
            ("sglang", "0.5.23", "qwen3-8b", "fp8", ""),
            ("sglang", "0.5.23", "qwen3-8b", "gptq", "needs a checkpoint that is stored so"),
            ("sglang", "0.5.23", "deepseek-v3", "awq", "quantised by fp8; leave the flag out"),
        ],
    )
    def test_flag_and_checkpoint_go_together(
        self, name: str, version: str, model: str, flag: str, message: str
    ) -> None:
        said = [
            each.message
            for each in engine(name).check(start(model, {"quantization": flag}, name, version))
            if each.rule == "quantization"
        ]
        assert (message in said[0]) if message else not said

    def test_a_quantised_checkpoint_stays_as_it_is(self) -> None:
        deployment = start("deepseek-v3", {"quantization": "fp8"})
        assert engine("vllm").stored(deployment) is deployment.architecture

    def test_a_way_nobody_models_is_named(self) -> None:
        named = engine("vllm").not_modelled(start("qwen3-8b", {"quantization": "torchao"}))
        assert named == {"quantization": "how torchao stores weights is not modelled"}

    @pytest.mark.parametrize(("name", "flag"), [("vllm", "fp8_per_tensor"), ("sglang", "fp8")])
    def test_times_memory_and_plans_follow(self, name: str, flag: str) -> None:
        posed = problem(name, "dense")
        plain, small = resolved(posed), resolved(posed, quantization=flag)
        assert small.memory[0].layer_weight_bytes / plain.memory[0].layer_weight_bytes == pytest.approx(0.5, abs=0.01)
        assert small.kv_cache.tokens > plain.kv_cache.tokens
        assert decode_s(posed, quantization=flag) < 0.9 * decode_s(posed)
        planner = Planner(posed, stage_bounds(posed.stages, posed.layers), ())
        split = posed.default_partition
        assert planner.stage_seconds(split, {"quantization": flag})[0] < planner.stage_seconds(split, {})[0]


class TestTypeOfCache:
    @pytest.mark.parametrize(("name", "flag"), [("vllm", "fp8"), ("sglang", "fp8_e4m3")])
    def test_a_decode_reads_half(self, name: str, flag: str) -> None:
        # 16 contexts of 4,096 tokens, 18 layers of 4 heads of 2 * 128 on a rank: 1.2 GB in FP8 at 864 GB/s, about.
        posed = problem(name, "dense")
        saved = decode_s(posed) - decode_s(posed, kv_cache_dtype=flag)
        assert saved == pytest.approx(16 * 4096 * 18 * 4 * 256 / 864e9, rel=0.4)

    def test_a_problem_as_stored_asks_engines_with_the_checkpoint(self) -> None:
        posed = problem("vllm", "dense")
        stored = posed.served({"quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8"})
        assert stored.start({}).architecture is posed.architecture
        assert stored.served({"quantization": "fp8_per_tensor", "kv_cache_dtype": "fp8"}) is stored
        assert stored.served({}).architecture == posed.architecture
        assert posed.served({"max_num_seqs": 4}) is posed


class TestHost:
    def test_bytes_leave_the_gpu_and_are_read_in_every_step(self) -> None:
        posed = problem("vllm", "dense")
        plain, left = resolved(posed), resolved(posed, cpu_offload_gb=1.0)
        assert plain.memory[0].weight_bytes - left.memory[0].weight_bytes == GIB
        assert left.kv_bytes[0] - plain.kv_bytes[0] == GIB
        assert decode_s(posed, cpu_offload_gb=1.0) - decode_s(posed) == pytest.approx(GIB / 19e9)  # pcie4, measured
        assert "weights in the host read over pcie4" in left.problem.costs.source

    def test_experts_that_nobody_visits_are_not_read_in_place(self) -> None:
        posed = problem("vllm", "experts")
        candidate = resolved(posed, cpu_offload_gb=8.0)
        costs, plain = (each.problem.costs.stage_costs(each.partition) for each in (candidate, resolved(posed)))
        few, many = (costs.compute_s(decode(n, 100))[0] - plain.compute_s(decode(n, 100))[0] for n in (1, 256))
        assert few < 0.4 * many  # 8 tokens of 8 data ranks visit at most 64 of 256 experts
        assert many == pytest.approx(8 * GIB / 38e9, rel=0.01)

    def test_every_generation_has_a_link_to_its_host(self) -> None:
        assert {link_to_host(each).name for each in GPUS.values()} <= set(LINKS)
        assert link_to_host(gpu("GB200")).name == "nvlink-c2c"
        assert link_to_host(gpu("H200")).name == "pcie5"
        assert gpu("A100-80GB").generation is Generation.AMPERE
        assert link_to_host(gpu("A100-80GB")).name == "pcie4"


class TestTowers:
    @pytest.mark.parametrize(
        ("model", "limits", "built"),
        [
            ("kimi-k3", '{"image": 0}', False),  # 0.33 models/kimi_k3/nvidia/model.py: _mark_tower_model(…, "image")
            ("kimi-k2.5", '{"image": 0}', True),  # model_executor/models/kimi_k25.py: "vision_chunk"
            ("kimi-k2.5", '{"vision_chunk": 0}', False),
            ("qwen3.5-27b", '{"image": 0}', True),  # model_executor/models/qwen3_5.py: {"image", "video"}
            ("qwen3.5-27b", '{"image": 0, "video": {"count": 0}}', False),
            ("qwen3.5-27b", '{"image": 2, "video": 0}', True),
        ],
    )
    def test_vllm_leaves_out_a_tower_that_may_read_nothing(self, model: str, limits: str, *, built: bool) -> None:
        assert engine("vllm").memory_settings(start(model, {"limit_mm_per_prompt": limits})).vision is built

    @pytest.mark.parametrize(
        ("model", "flags", "built"),
        [
            ("qwen3.5-27b", {"language_model_only": True}, False),
            ("kimi-k3", {"language_only": True}, True),  # 0.5.23 models/kimi_k25.py builds it all the same
            ("llama-4-maverick", {}, False),  # mm_disabled_models
            ("llama-4-maverick", {"enable_multimodal": True}, True),
        ],
    )
    def test_sglang_leaves_out_those_whose_model_asks(
        self, model: str, flags: dict[str, FlagValue], *, built: bool
    ) -> None:
        assert engine("sglang").memory_settings(start(model, flags, "sglang", "0.5.23")).vision is built


@pytest.mark.parametrize(
    ("name", "flags"),
    [("vllm", {"enable_eplb": True, "eplb_config": '{"num_redundant_experts": 32}'}),
     ("sglang", {"ep_num_redundant_experts": 32})],
)  # fmt: skip
def test_copies_of_experts_weigh_what_they_hold(name: str, flags: dict[str, FlagValue]) -> None:
    """32 more over 8 ranks are 4 more on each: 3 matrices of 7168 x 2048 in FP8 with a scale every 128 x 128."""
    posed = problem(name, "experts")
    plain, more = resolved(posed), resolved(posed, **flags)
    experts = sum(layer.ffn.experts > 0 for layer in posed.architecture.layers[: posed.default_partition[0]])
    expert = 3 * (7168 * 2048 + 56 * 16 * 4)
    assert more.memory[0].layer_weight_bytes - plain.memory[0].layer_weight_bytes == pytest.approx(experts * 4 * expert)
    assert "enable_eplb" not in flags or "enable_eplb" in posed.engine.not_modelled(posed.start(flags))


@pytest.mark.parametrize(
    ("flags", "recurrent", "convolution"),
    [({}, 4, 2), ({"mamba_ssm_cache_dtype": "bfloat16"}, 2, 2), ({"mamba_cache_dtype": "float32"}, 4, 4)],
)
def test_types_of_a_state(flags: dict[str, FlagValue], recurrent: int, convolution: int) -> None:
    """Kimi-K3: 96 heads of 128 x 128, and three convolutions of 4 over 96 x 128 inputs (kda_state_shape)."""
    block = load_architecture("kimi-k3").layers[0].attention
    state = 96 * 128 * 128 * recurrent + 3 * 96 * 128 * 3 * convolution
    assert vllm_state_bytes(block, flags) == state
    cache = resolved(problem("vllm", "hybrid"), **flags).kv_cache
    assert cache.block_size * 1152 >= state // 2 > (cache.block_size - 128) * 1152  # two tensor ranks


def test_a_state_in_half_the_bits_is_read_faster_and_float16_is_refused() -> None:
    for name, flag in (("vllm", "mamba_ssm_cache_dtype"), ("sglang", "mamba_ssm_dtype")):
        posed = problem(name, "hybrid")
        assert decode_s(posed, **{flag: "bfloat16"}) < decode_s(posed)
    with pytest.raises(SpecError, match="Kimi delta attention takes auto, float32 and bfloat16, not float16"):
        vllm_state_bytes(load_architecture("kimi-k3").layers[0].attention, {"mamba_ssm_cache_dtype": "float16"})


@pytest.mark.parametrize(
    ("name", "dtype", "reason"),
    [("vllm", "fp8_ds_mla", "it packs latent attention"), ("sglang", "mxfp8", "it needs a Blackwell GPU")],
)
def test_item_15_one_choice_that_nobody_can_plan_stops_no_search(name: str, dtype: str, reason: str) -> None:
    """The engine refuses it by a rule, and the planner finds no partition for it: the other choices go on."""
    posed = problem(name, "dense")
    (fault,) = posed.engine.check(posed.start({"kv_cache_dtype": dtype}))
    assert fault.rule == "kv-cache-dtype"
    assert reason in fault.message
    planner = Planner(posed, stage_bounds(posed.stages, posed.layers), ())
    with pytest.raises(InfeasibleSpace, match=reason):
        planner.front({"kv_cache_dtype": dtype})
