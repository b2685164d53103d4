"""Which models SGLang builds with more copies of their ends than a pipeline needs.

Source: SGLang 0.5.23 `srt/models/*.py`.
"""

from __future__ import annotations

from partitune.costs.memory import ReplicatedEmbeddings
from partitune.models.architecture import Architecture

_EMBEDDING = frozenset({"MiniMaxM2ForCausalLM", "Qwen3NextForCausalLM"})
_HEAD = frozenset({
    "Glm4MoeForCausalLM", "GptOssForCausalLM", "MixtralForCausalLM", "Qwen3MoeForCausalLM", "Qwen3NextForCausalLM",
})  # fmt: skip


def replicated_embeddings(architecture: Architecture) -> ReplicatedEmbeddings:
    """What SGLang builds on every stage."""
    name = architecture.architecture
    return ReplicatedEmbeddings(embedding=name in _EMBEDDING, head=name in _HEAD, tower=False)
