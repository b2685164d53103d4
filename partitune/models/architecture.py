"""What a model is to a pipeline: an ordered list of layers plus what sits on its two ends.

Decision: every family reader produces this one shape and nothing downstream looks at a config.json again. Quantities
are for the whole layer (all TP ranks together); `shards` on an attention block says how far KV can be split. A "layer"
is what the engine counts when it cuts: for Nemotron-H a Mamba block, an attention block and an MLP are three layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Attention(StrEnum):
    """How a layer mixes tokens."""

    FULL = "full"  # multi-head or grouped-query attention over the whole context
    SLIDING = "sliding"  # the same inside a window
    MLA = "mla"  # multi-head latent attention (one compressed KV head)
    SPARSE = "sparse"  # MLA or GQA over tokens chosen by an indexer (DSA and kin)
    KDA = "kda"  # Kimi delta attention: fixed state
    GDN = "gdn"  # gated delta net: fixed state
    MAMBA = "mamba"  # Mamba / Mamba2: fixed state
    LIGHTNING = "lightning"  # linear attention of MiniMax-M1: fixed state
    NONE = "none"  # the layer is only an FFN (Nemotron-H)


#: Kinds whose per-sequence memory is a fixed state; the others keep KV per token.
STATE_KINDS = frozenset({Attention.KDA, Attention.GDN, Attention.MAMBA, Attention.LIGHTNING})


class Ffn(StrEnum):
    """What follows the attention of a layer: one MLP for every token, experts that a router chooses, or nothing."""

    DENSE = "dense"
    MOE = "moe"
    NONE = "none"


class Matrix(NamedTuple):
    """One weight matrix as the checkpoint has it: what a measured GEMM is looked up by."""

    name: str  # inside its block: q_proj
    outputs: int
    inputs: int
    dtype: str  # bf16, fp8, fp8_block (scales by block of rows), int4, mxfp4, nvfp4
    whole: bool  # every TP rank holds all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What one half of a layer weighs, all TP ranks together. Routed experts are counted beside it."""

    params: int = 0
    weight_bytes: float = 0.0
    dtype: str = "bf16"  # of most parameters: bf16, fp8, int4, mxfp4, nvfp4
    flops_per_token: float = 0.0  # 2 FLOPs a parameter of a matrix
    replicated_bytes: float = 0.0  # part of weight_bytes every TP rank holds whole (MLA's latents, routers)
    matrices: tuple[Matrix, ...] = ()  # as counted in `params`


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBlock(Block):
    """One token mixer: what it computes and keeps, for every token and for a sequence."""

    kind: Attention
    flops_per_pair: float = 0.0  # score and value products per (new token, context token) pair; 0 for state kinds
    kv_bytes_per_token: int = 0  # in a 16-bit cache, all KV heads, an indexer's keys included; 0 for state kinds
    index_bytes_per_token: int = 0  # of these: an indexer's keys, whole on every rank, whatever type the cache has
    cached_bytes: float | None = None  # on a rank, of a token or of the state, in another type; None: as above
    packed_kv: bool = False  # the model fixes the format of its entries, and no cache type changes it (DeepSeek-V4)
    key_width: int = 0  # elements of one key head: of KDA and GDN, and where values are narrower or wider than keys
    bounded_gate: bool = False  # of KDA: a full-rank output gate and a decay with a lower bound (Kimi-K3)
    shards: int = 1  # KV heads: a TP rank holds 1/min(tp, shards) of the KV. MLA: 1 (each rank holds it whole)
    heads: int = 1
    window: int | None = None  # tokens, for SLIDING
    state_elements: int = 0  # of these the recurrent state's elements, whatever type they have
    conv_elements: int = 0  # and the convolution's, 16-bit
    state_bytes: int = 0  # fixed bytes per sequence: recurrent and convolution state, or DeepSeek-V4's window cache
    topk: int | None = None  # context tokens a query reads at most, for SPARSE; the KV itself still grows
    indexer_flops_per_pair: float = 0.0  # choosing those tokens: per (new token, context token), over all of them

    def state_bytes_in(self, recurrent: int | None, convolution: int | None) -> int:
        """Bytes of the fixed state where its elements have so many bytes; None: as many as the model's config says."""
        own = self.state_bytes - 2 * self.conv_elements
        state = own if recurrent is None else self.state_elements * recurrent
        return state + self.conv_elements * (2 if convolution is None else convolution)

    def kv_bytes_per_token_rank(self, tp: int) -> float:
        """KV bytes per token on one TP rank (a head is replicated when tp exceeds the heads)."""
        heads = (self.kv_bytes_per_token - self.index_bytes_per_token) / min(tp, self.shards)
        return heads + self.index_bytes_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnBlock(Block):
    """One feed-forward block: a dense MLP, or router, shared experts and latent projections beside routed experts."""

    kind: Ffn
    experts: int = 0
    experts_per_token: int = 0
    expert_params: int = 0  # of one routed expert
    expert_bytes: float = 0.0  # of one routed expert, scales included
    expert_dtype: str = "bf16"
    expert_width: int = 0  # hidden width the routed experts work in; 0 means the model's hidden_size (K3: latent 3584)
    expert_matrices: tuple[Matrix, ...] = ()  # of one routed expert

    @property
    def routed_bytes(self) -> float:
        """Bytes of all routed experts."""
        return self.experts * self.expert_bytes

    @property
    def routed_flops_per_token(self) -> float:
        """FLOPs of the experts one token visits."""
        return 2.0 * self.experts_per_token * self.expert_params


@dataclass(frozen=True, slots=True)
class Layer:
    """One entry of the engine's layer list."""

    index: int  # 0-based
    attention: AttentionBlock
    ffn: FfnBlock
    other_params: int = 0  # norms and the like, bf16

    @property
    def kind(self) -> str:
        """`attention+ffn`, the label of the per-stage table; layers of one kind cost the same."""
        parts = [k for k in (self.attention.kind.value, self.ffn.kind.value) if k != "none"]
        return "+".join(parts)

    @property
    def params(self) -> int:
        """All parameters of the layer."""
        return self.attention.params + self.ffn.params + self.ffn.experts * self.ffn.expert_params + self.other_params

    @property
    def weight_bytes(self) -> float:
        """All weight bytes of the layer."""
        return self.attention.weight_bytes + self.ffn.weight_bytes + self.ffn.routed_bytes + 2.0 * self.other_params

    @property
    def has_token_kv(self) -> bool:
        """True where KV grows with the context."""
        return self.attention.kind not in STATE_KINDS and self.attention.kind is not Attention.NONE


class CutKind(StrEnum):
    """Why layers on both sides of a boundary belong together."""

    INDEX = "index"
    SHARED_KV = "shared KV"
    VISION = "vision"

    @property
    def meaning(self) -> str:
        """What ties them, in words."""
        return _TIES[self]


_TIES = {
    CutKind.INDEX: "one attends to the tokens that an earlier one picked",
    CutKind.SHARED_KV: "one reads the KV of an earlier one",
    CutKind.VISION: "features of the vision tower are added to both",
}


@dataclass(frozen=True, slots=True)
class Edges:
    """What sits before the first and after the last layer, outside every cut."""

    vocab_size: int
    embedding_params: int
    embedding_bytes: float
    tied: bool  # the head shares the embedding: both ends hold it, it is counted once as a parameter
    head_params: int  # 0 when tied
    head_bytes: float  # bytes of the head matrix on the last stage, tied or not
    drafter_params: int = 0  # of the MTP / next-token-prediction modules in the checkpoint
    drafter_bytes: float = 0.0
    vision_params: int = 0
    vision_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model as the pipeline sees it."""

    name: str
    architecture: str  # the class that the engine starts: the outermost that config.json names
    hidden_size: int
    layers: tuple[Layer, ...]
    edges: Edges
    max_position: int
    source: str  # file the config came from; inside the package for a catalog model
    dtype_bytes: int = 2  # of activations
    #: Boundaries (b: a stage ends after layer b-1) that part layers which belong together; engines say what then is.
    bound_cuts: Mapping[CutKind, frozenset[int]] = field(default_factory=dict)
    residual_block: int | None = None  # K3: a hand-off carries hidden + ceil(boundary / residual_block) vectors
    handoff_base: int = 2  # vectors of hidden_size handed over otherwise: hidden_states and residual
    notes: tuple[str, ...] = ()  # what the reader could not know and assumed, of little weight
    doubts: tuple[str, ...] = ()  # the same where every figure hangs on it: it stands beside every figure
    quantisation: str = ""  # method that the checkpoint's config names, as the engines look it up; empty: none
    config: Mapping[str, object] = field(default_factory=dict, compare=False, repr=False)  # what it was read from
    repository: str | None = None  # hub id of a catalog model (`moonshotai/Kimi-K3`), what an engine is told to serve

    @property
    def served_class(self) -> str:
        """The class that an engine builds: of the whole config, where `architecture` is the language model's."""
        names = self.config.get("architectures")
        return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else self.architecture

    @property
    def params(self) -> int:
        """Parameters of the text model with head and embedding (no drafter, no vision)."""
        edges = self.edges
        return sum(layer.params for layer in self.layers) + edges.embedding_params + edges.head_params

    @property
    def weight_bytes(self) -> float:
        """Weight bytes of the text model, embedding counted once when tied."""
        head = 0.0 if self.edges.tied else self.edges.head_bytes
        return sum(layer.weight_bytes for layer in self.layers) + self.edges.embedding_bytes + head

    @property
    def has_experts(self) -> bool:
        """True for a model with routed experts."""
        return any(layer.ffn.kind is Ffn.MOE for layer in self.layers)

    @property
    def is_hybrid(self) -> bool:
        """True when fixed-state layers stand beside layers with token KV."""
        kinds = {layer.attention.kind for layer in self.layers}
        return bool(kinds & STATE_KINDS) and any(layer.has_token_kv for layer in self.layers)

    def handoff_vectors(self, boundary: int) -> int:
        """Vectors of `hidden_size` per token that cross the cut before layer `boundary` (0-based).

        vLLM 0.32 `models/kimi_k3/nvidia/model.py` sends hidden_states and ceil(boundary/12) residual vectors; others
        send hidden_states and residual.
        """
        if self.residual_block is None:
            return self.handoff_base
        return 1 + -(-boundary // self.residual_block)

    def handoff_bytes(self, boundary: int, tokens: int) -> float:
        """Bytes of the activations handed over at `boundary` for `tokens` tokens, all TP ranks together."""
        return float(self.handoff_vectors(boundary) * self.hidden_size * self.dtype_bytes * tokens)
