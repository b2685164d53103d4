"""What every TP rank holds whole, against the layers that vLLM 0.32 builds as ReplicatedLinear or with disable_tp."""

from __future__ import annotations

from math import ceil

import pytest

from partitune.models.architecture import Attention, Layer
from partitune.models.reader import load_architecture


def first(name: str, kind: str) -> Layer:
    return next(layer for layer in load_architecture(name).layers if layer.kind == kind)


def fp8(outputs: int, inputs: int) -> int:
    """Block-scaled FP8: one byte a weight, one float32 for each 128 x 128 block."""
    return outputs * inputs + 4 * ceil(outputs / 128) * ceil(inputs / 128)


def bf16(*sizes: int) -> int:
    return 2 * sum(sizes)


MLA_FP8 = fp8(1536, 7168) + fp8(512 + 64, 7168) + bf16(1536, 512)  # q_a, kv_a, the norms of the two latents


# By vLLM 0.32 file: deepseek_v2.py (fused_qkv_a_proj; Indexer wq_b, wk_weights_proj, k_norm), models/kimi_k3/nvidia/
# mla.py (latent shards of fused_qkv_a_g_proj) and kda.py (f_a shard, o_norm), layers/mamba/gdn/kimi_gdn_linear_attn.py
# (g_a_proj too), models/deepseek_v4 (fused_wqa_wkv, compressor, hyper-connections), layers/linear.py (M3's index_k).
@pytest.mark.parametrize(
    ("name", "kind", "whole_bytes"),
    [
        ("deepseek-v3", "mla+moe", MLA_FP8),
        ("deepseek-v3.2", "sparse+moe", MLA_FP8 + fp8(64 * 128, 1536) + bf16(128 * 7168, 64 * 7168, 2 * 128)),
        ("kimi-k3", "mla+moe", bf16(1536 * 7168, 576 * 7168, 1536, 512)),
        ("kimi-k3", "kda+moe", bf16(128 * 7168, 128)),
        ("kimi-linear-48b", "kda+moe", bf16(2 * 128 * 2304, 128)),
        ("kimi-linear-48b", "mla+moe", bf16(576 * 2304, 512)),  # its query has no latent
        ("minimax-m3", "sparse+moe", bf16(128 * 6144, 2 * 128)),
        ("minimax-m3", "full+dense", 0),
        ("llama-3.1-70b", "full+dense", 0),
        ("qwen3-next-80b", "gdn+moe", 0),
    ],
)
def test_attention_keeps_its_latent_projections_and_indexer_whole(name: str, kind: str, whole_bytes: int) -> None:
    assert first(name, kind).attention.replicated_bytes == whole_bytes


def test_deepseek_v4_keeps_latents_compressors_and_residual_mixing_whole() -> None:
    layers = [layer.attention for layer in load_architecture("deepseek-v4-pro").layers]
    heavy = next(block for block in layers if block.kind is Attention.SPARSE and block.topk is None)
    indexed = next(block for block in layers if block.topk is not None)
    mixing = 2 * 4 * (24 * 4 * 7168 + 24 + 3)  # (2 + 4) * 4 mixes of 4 streams, float32, before attention and experts
    latents = fp8(1536, 7168) + fp8(512, 7168) + bf16(1536, 512)
    # one entry of 512 for 128 tokens: keys and gates, positions in float32, norm
    assert heavy.replicated_bytes == latents + mixing + bf16(2 * 512 * 7168, 512) + 4 * 128 * 512
    # for 4 tokens the windows overlap: twice as wide, and the same again 128 wide for the index keys
    compressors = sum(bf16(4 * width * 7168, width) + 4 * 4 * 2 * width for width in (512, 128))
    index = fp8(64 * 128, 1536) + bf16(64 * 7168)
    assert indexed.replicated_bytes == latents + mixing + compressors + index


# GateLinear is a ReplicatedLinear; models/kimi_k3/nvidia/model.py routed_expert_down_proj and up_proj, nemotron_h.py
# fc1_latent_proj and fc2_latent_proj, qwen3_next.py shared_expert_gate. Routing biases are float32.
@pytest.mark.parametrize(
    ("name", "kind", "whole_bytes", "expert_width"),
    [
        ("kimi-k3", "kda+moe", bf16(896 * 7168, 2 * 3584 * 7168, 3584) + 4 * 896, 3584),
        ("kimi-k3", "kda+dense", 0, 0),
        ("nemotron-3-ultra", "moe", bf16(512 * 8192, 2 * 2048 * 8192) + 4 * 512, 2048),
        ("nemotron-3-nano", "moe", bf16(128 * 2688) + 4 * 128, 0),
        ("deepseek-v3", "mla+moe", bf16(256 * 7168) + 4 * 256, 0),
        ("qwen3-next-80b", "full+moe", bf16(512 * 2048, 2048), 0),
        ("gpt-oss-120b", "full+moe", bf16(128 * 2880, 128), 0),
        ("mixtral-8x7b", "full+moe", bf16(8 * 4096), 0),
    ],
)
def test_experts_keep_router_and_latent_projections_whole(
    name: str, kind: str, whole_bytes: int, expert_width: int
) -> None:
    ffn = first(name, kind).ffn
    assert (ffn.replicated_bytes, ffn.expert_width) == (whole_bytes, expert_width)


def test_what_is_whole_is_part_of_the_weights() -> None:
    for name in ("deepseek-v2", "glm-5.2", "kimi-k2.5", "mistral-large-4", "deepseek-v4-flash"):
        for layer in load_architecture(name).layers:
            assert 0 < layer.attention.replicated_bytes < layer.attention.weight_bytes
            assert layer.ffn.replicated_bytes <= layer.ffn.weight_bytes
