"""Kimi-K3, layer by layer, against what is known of its checkpoint and of vLLM 0.32."""

from __future__ import annotations

import pytest

from partitune.models.architecture import Architecture, Attention, Ffn
from partitune.models.reader import load_architecture


@pytest.fixture(scope="module")
def k3() -> Architecture:
    return load_architecture("kimi-k3")


def test_layer_kinds(k3: Architecture) -> None:
    kinds = [layer.attention.kind for layer in k3.layers]
    assert len(kinds) == 93
    # vLLM 0.32 tests/models/kimi_k3: latent attention where index % 4 == 3, and on the last layer.
    assert [i for i, kind in enumerate(kinds) if kind is Attention.MLA] == [*range(3, 93, 4), 92]
    assert kinds.count(Attention.KDA) == 69
    assert kinds[-2:] == [Attention.MLA, Attention.MLA]
    assert k3.layers[0].kind == "kda+dense"
    assert all(layer.ffn.kind is Ffn.MOE for layer in k3.layers[1:])
    assert k3.is_hybrid


def test_gigabytes(k3: Architecture) -> None:
    first, second, fourth = k3.layers[0], k3.layers[1], k3.layers[3]
    found = {
        "kda": second.attention.weight_bytes,
        "mla": fourth.attention.weight_bytes,
        "routed experts": second.ffn.routed_bytes,
        "shared, latent and router": second.ffn.weight_bytes,
        "dense mlp": first.ffn.weight_bytes,
        "embedding": k3.edges.embedding_bytes,
        "head": k3.edges.head_bytes,
        "first layer": first.weight_bytes,
        "model": k3.weight_bytes,
    }
    wanted = {
        "kda": 0.89,
        "mla": 0.46,
        "routed experts": 15.7,
        "shared, latent and router": 0.26 + 0.12,
        "dense mlp": 1.45,
        "embedding": 2.35,
        "head": 2.35,
        "first layer": 2.3,
        "model": 1560,
    }
    assert {key: value / 1e9 for key, value in found.items()} == pytest.approx(wanted, rel=0.02)
    assert min(layer.weight_bytes for layer in k3.layers[1:]) > 16.5e9
    assert max(layer.weight_bytes for layer in k3.layers) < 17.05e9


def test_formats(k3: Architecture) -> None:
    layer = k3.layers[1]
    assert (layer.attention.dtype, layer.ffn.dtype, layer.ffn.expert_dtype) == ("bf16", "bf16", "mxfp4")
    assert (layer.ffn.experts, layer.ffn.experts_per_token) == (896, 16)
    assert layer.ffn.expert_params == 3 * 3584 * 3072  # in the latent width


def test_state_and_kv(k3: Architecture) -> None:
    kda, mla = k3.layers[0].attention, k3.layers[3].attention
    recurrent = 96 * 128 * 128 * 4
    assert recurrent / 1e6 == pytest.approx(6.29, abs=0.01)
    assert kda.state_bytes == recurrent + 3 * 96 * 128 * 3 * 2  # and three 16-bit inputs of the width-4 convolution
    # 54 MB a rank at TP8 for all layers
    assert 69 * recurrent / 8 / 1e6 == pytest.approx(54, abs=1)
    assert kda.kv_bytes_per_token == 0
    assert mla.kv_bytes_per_token == 1152
    assert mla.kv_bytes_per_token_rank(tp=8) == 1152
    assert sum(layer.attention.kv_bytes_per_token for layer in k3.layers) == 24 * 1152


def test_handoff_grows_with_depth(k3: Architecture) -> None:
    # vLLM 0.32 models/kimi_k3/nvidia/model.py: 28.7 to 114.7 kB a token at the default cuts of pp8
    cuts = [11, 22, 34, 46, 58, 70, 82]
    assert [k3.handoff_vectors(cut) for cut in cuts] == [2, 3, 4, 5, 6, 7, 8]
    assert k3.handoff_bytes(11, 1) == pytest.approx(28.7e3, rel=0.01)
    assert k3.handoff_bytes(82, 2048) == pytest.approx(235e6, rel=0.01)


def test_edges(k3: Architecture) -> None:
    assert not k3.edges.tied
    assert k3.edges.drafter_params == 0
    assert 0.3e9 < k3.edges.vision_params < 0.6e9  # 27 layers of 1024 and a projector
    assert k3.max_position == 2**20
    assert k3.bound_cuts == {}
    assert k3.notes == ()
