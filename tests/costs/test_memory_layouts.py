"""What a layout, and an engine's habits at the ends of a pipeline, do to the memory of a stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.candidate import FlagValue
from partitune.costs.memory import MemoryModel, MemorySettings, ReplicatedEmbeddings
from partitune.engines.deployment import Deployment
from partitune.engines.sglang.engine import Sglang
from partitune.engines.vllm.engine import Vllm
from partitune.hardware.gpus import gpu
from partitune.hardware.parallelism import Layout
from partitune.models.architecture import Architecture
from partitune.models.reader import load_architecture
from tests.builders import vllm_placement

SMALL = MemorySettings(max_num_batched_tokens=2048, max_num_seqs=64, graph_sizes=19)
V3 = load_architecture("deepseek-v3")


def memory(
    model: Architecture, layout: Layout, settings: MemorySettings = SMALL, name: str = "H200", gpus: int = 8
) -> MemoryModel:
    return MemoryModel(model, vllm_placement(layout, model, name=name, gpus_per_node=gpus), settings)


def settings_of(
    model: Architecture, version: str = "0.32.0", runner: str = "auto", flags: dict[str, FlagValue] | None = None
) -> MemorySettings:
    start = Deployment(version, model, Layout(pp=4), gpu("A10"), flags=flags or {}, runner=runner)
    return (Sglang() if version.startswith("0.5.") else Vllm()).memory_settings(start)


def test_data_ranks_share_experts_and_repeat_everything_else() -> None:
    routed = V3.layers[30].ffn.routed_bytes
    one, wide = (memory(V3, layout).stage(0, 30, 31) for layout in (Layout(tp=8), Layout(dp=8, expert_ranks=8)))
    own = V3.layers[30].weight_bytes - routed
    assert wide.layer_weight_bytes == pytest.approx(routed / 8 + own, rel=1e-3)
    # Without data ranks the rest is cut as well, except for what latent attention keeps whole on every rank.
    assert one.layer_weight_bytes < routed / 8 + own / 2
    cut = memory(V3, Layout(dp=8)).stage(0, 30, 31)
    assert cut.layer_weight_bytes == wide.layer_weight_bytes  # an eighth of every expert, or every eighth expert


def test_working_memory_counts_the_tokens_a_rank_sees() -> None:
    """A data rank's experts work on the tokens of all; a context rank's attention on its part of a chunk."""
    one, eight = (memory(V3, Layout(dp=dp)).stage(0, 30, 31).activation_bytes for dp in (1, 8))
    spread = memory(V3, Layout(dp=8, expert_ranks=8)).stage(0, 30, 31).activation_bytes
    assert eight > 3 * spread > one  # eight times the rows, each cut in eight, or as many rows as alone
    vectors = SMALL.max_num_batched_tokens * V3.hidden_size * 2
    assert spread - one == pytest.approx(8 * vectors)  # what was gathered
    halves = [memory(V3, Layout(tp=4, pp=2, pcp=pcp)).stage(1, 3, 4) for pcp in (1, 2)]
    assert halves[1].in_flight_bytes == halves[0].in_flight_bytes / 2


def test_shared_experts_are_whole_on_every_rank_where_tokens_are_cut() -> None:
    """vLLM 0.32 `deepseek_v2.py`: disable_tp for the shared experts under sequence parallelism."""
    whole, cut = (memory(V3, layout).stage(0, 30, 31) for layout in (
        Layout(tp=4, dp=2, expert_ranks=8), Layout(tp=4, dp=2)))  # fmt: skip
    ffn = V3.layers[30].ffn
    shared = ffn.weight_bytes - ffn.replicated_bytes
    assert whole.layer_weight_bytes - cut.layer_weight_bytes == pytest.approx(shared * 3 / 4)


def test_an_embedding_on_every_stage_is_vocabulary_times_hidden_size_times_two() -> None:
    """vllm issue 36861: the middle stages of four A10 had no memory for KV, with about 1 GB of embedding each."""
    qwen = load_architecture("qwen3.5-27b")
    plain, copied = (
        memory(qwen, Layout(pp=4), replace(SMALL, copies=ReplicatedEmbeddings(embedding=copied)), "A10").partition(
            (16,) * 4
        )
        for copied in (False, True)
    )
    extra = [two.weight_bytes - one.weight_bytes for one, two in zip(plain, copied, strict=True)]
    embedding = qwen.edges.vocab_size * qwen.hidden_size * 2
    assert extra == pytest.approx([0, embedding, embedding, embedding])
    heads = memory(qwen, Layout(pp=4), replace(SMALL, copies=ReplicatedEmbeddings(head=True)), "A10").partition(
        (16,) * 4
    )
    extra = [two.weight_bytes - one.weight_bytes for one, two in zip(plain, heads, strict=True)]
    assert extra == pytest.approx([qwen.edges.head_bytes] * 3 + [0])


def test_copies_decide_whether_a_stage_fits() -> None:
    qwen = load_architecture("qwen3.5-27b")
    tight = replace(SMALL, vision=False, gpu_memory_utilization=0.65)  # 14.3 GiB of the card
    fits = [
        memory(qwen, Layout(pp=4), replace(tight, copies=ReplicatedEmbeddings(embedding=copied)), "A10")
        .stage(1, 16, 32)
        .fits
        for copied in (False, True)
    ]
    assert fits == [True, False]


@pytest.mark.parametrize(
    ("model", "version", "runner", "copies"),
    [
        # vLLM 0.32 model_executor/models: which modules are built outside is_first_rank and is_last_rank
        ("qwen3.5-27b", "0.32.0", "auto", ReplicatedEmbeddings(embedding=True, head=False, tower=True)),
        ("qwen3.5-27b", "0.33.0", "auto", ReplicatedEmbeddings(embedding=True, head=False, tower=False)),
        ("qwen3.5-27b", "0.33.0", "v1", ReplicatedEmbeddings(embedding=True, head=False, tower=True)),
        ("qwen3-235b-a22b", "0.33.0", "auto", ReplicatedEmbeddings(embedding=True, head=True)),
        ("qwen3-next-80b", "0.33.0", "auto", ReplicatedEmbeddings(embedding=True, head=True)),
        ("gpt-oss-120b", "0.33.0", "auto", ReplicatedEmbeddings(embedding=True, head=True)),
        ("nemotron-h-56b", "0.33.0", "auto", ReplicatedEmbeddings(embedding=True, head=True)),
        ("llama-3.1-405b", "0.33.0", "auto", ReplicatedEmbeddings()),
        ("kimi-k3", "0.33.0", "auto", ReplicatedEmbeddings()),
        ("deepseek-v3", "0.33.0", "auto", ReplicatedEmbeddings()),
        ("deepseek-v3", "0.7.3", "v1", ReplicatedEmbeddings(head=True, tower=True)),  # PR 13833
        # SGLang 0.5.23 srt/models
        ("qwen3-next-80b", "0.5.23", "auto", ReplicatedEmbeddings(embedding=True, head=True)),
        ("qwen3-235b-a22b", "0.5.23", "auto", ReplicatedEmbeddings(head=True)),
        ("minimax-m2.5", "0.5.23", "auto", ReplicatedEmbeddings(embedding=True)),
        ("kimi-k3", "0.5.23", "auto", ReplicatedEmbeddings()),
    ],
)
def test_what_an_engine_builds_more_than_once(
    model: str, version: str, runner: str, copies: ReplicatedEmbeddings
) -> None:
    assert settings_of(load_architecture(model), version, runner).copies == copies


def test_a_drafter_stands_on_the_last_stage_with_what_it_reads() -> None:
    """vLLM 0.32 `models/utils.py` spec_decode_needs_target_embed; draft models have one pipeline stage."""
    plain, mtp = settings_of(V3), settings_of(V3, flags={"spec_method": "mtp", "spec_tokens": 1})
    eagle = settings_of(V3, flags={"speculative_config": '{"method": "eagle3", "model": "x"}'})
    last = {
        name: memory(V3, Layout(tp=8, pp=2), settings).stage(1, 31, 61).edge_weight_bytes
        for name, settings in (("plain", plain), ("mtp", mtp), ("eagle", eagle))
    }
    assert last["mtp"] - last["plain"] == pytest.approx(V3.edges.drafter_bytes / 8)
    assert last["eagle"] - last["plain"] == pytest.approx(V3.edges.embedding_bytes / 8)


def test_the_vision_profile_needs_memory_on_the_first_stage_only() -> None:
    k3 = load_architecture("kimi-k3")
    seeing, blind = (
        memory(k3, Layout(tp=2, pp=8), replace(SMALL, vision=vision), "B300").partition((12,) * 7 + (9,))
        for vision in (True, False)
    )
    assert seeing[0].vision_bytes > 0
    assert [stage.vision_bytes for stage in (*seeing[1:], *blind)] == [0.0] * 15
    assert settings_of(k3, flags={"language_model_only": True}).vision is False
    tensor = memory(k3, Layout(tp=2, pp=8), replace(SMALL, max_num_batched_tokens=65536), "B300")
    assert tensor.kv_tensor()[0, 0, 12] == pytest.approx(tensor.stage(0, 0, 12).kv_bytes, abs=1e3)


def test_a_length_that_does_not_fit_is_fitted_when_asked() -> None:
    """vLLM 0.32 `kv_cache_utils.py` _auto_fit_max_model_len: -1 takes the longest that the tightest stage holds."""
    qwen, free = load_architecture("qwen3-8b"), [2 << 30, 4 << 30]
    start = Deployment("0.32.0", qwen, Layout(pp=2), gpu("L4"), flags={"max_model_len": -1})
    cache = Vllm().kv_cache(start, (18, 18), free)
    per_token = 18 * qwen.layers[0].attention.kv_bytes_per_token
    assert cache.concurrency == pytest.approx(1.0, rel=0.01)
    assert cache.tokens == pytest.approx((2 << 30) / per_token, rel=0.01)
    assert cache.tokens < qwen.max_position
    roomy = Vllm().kv_cache(start, (18, 18), [64 << 30] * 2)
    fixed = replace(start, flags={"max_model_len": qwen.max_position})
    assert roomy == Vllm().kv_cache(fixed, (18, 18), [64 << 30] * 2)
    assert Vllm().fewest_kv_blocks(start) == 2
