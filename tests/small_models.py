"""Architectures made by hand for tests that need a shape, not a real config.json, and the least config.json of one."""

from __future__ import annotations

from partitune.hardware.generations import Generation
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import (
    STATE_KINDS,
    Architecture,
    Attention,
    AttentionBlock,
    CutKind,
    Edges,
    Ffn,
    FfnBlock,
    Layer,
)

H200 = Gpu("H200", 150_000_000_000, 4.8e12, 9.9e14, 2.0e15, 2.0e15, "test", Generation.HOPPER)
KIMI_K3_KINDS = "lllf" * 23 + "f"  # 93 layers: latent attention at every fourth and at the last (facts of the config)

#: A dense decoder of 4 layers, with 8 heads of 32 and 2 for keys and values.
PLAIN: dict[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 2048,
}


def architecture(
    kinds: str,
    *,
    name: str = "toy",
    model_class: str = "LlamaForCausalLM",
    attention: Attention = Attention.FULL,
    kv_bytes_per_token: int = 4096,
    shards: int = 8,
    heads: int = 64,
    state_bytes: int = 6_291_456,
    window: int = 128,
    key_width: int = 0,
    bounded_gate: bool = False,
    state_kind: Attention = Attention.KDA,
    moe: bool = False,
    shared_kv_cuts: frozenset[int] = frozenset(),
    max_position: int = 32768,
) -> Architecture:
    """One letter a layer: f attention, w sliding window, l fixed state, - feed-forward only."""
    mixers = {"f": attention, "w": Attention.SLIDING, "l": state_kind, "-": Attention.NONE}
    layers = []
    for index, letter in enumerate(kinds):
        kind = mixers[letter]
        state = kind in STATE_KINDS
        block = AttentionBlock(
            kind=kind,
            params=1000,
            weight_bytes=2000.0,
            dtype="bf16",
            flops_per_token=2000.0,
            flops_per_pair=0.0 if state else 4.0,
            kv_bytes_per_token=0 if state or kind is Attention.NONE else kv_bytes_per_token,
            shards=shards,
            heads=heads,
            window=window if kind is Attention.SLIDING else None,
            state_bytes=state_bytes if state else 0,
            key_width=key_width if state else 0,
            bounded_gate=bounded_gate and state,
        )
        ffn = FfnBlock(kind=Ffn.MOE if moe else Ffn.DENSE, params=1000, weight_bytes=2000.0, flops_per_token=2000.0)
        layers.append(Layer(index, block, ffn))
    edges = Edges(1000, 1000, 2000.0, tied=False, head_params=1000, head_bytes=2000.0)
    cuts = {CutKind.SHARED_KV: shared_kv_cuts} if shared_kv_cuts else {}
    return Architecture(name, model_class, 64, tuple(layers), edges, max_position, "test", bound_cuts=cuts)


def kimi_k3() -> Architecture:
    """Kimi-K3 in what partition and KV planning see of it."""
    return architecture(
        KIMI_K3_KINDS,
        name="Kimi-K3",
        model_class="KimiK3ForConditionalGeneration",
        attention=Attention.MLA,
        kv_bytes_per_token=1152,
        shards=1,
        heads=96,
        key_width=128,
        bounded_gate=True,
        moe=True,
        max_position=1_048_576,
    )
