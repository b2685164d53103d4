"""How attention heads divide over tensor ranks: the one rule that every engine's models share.

Source: vLLM 0.32 `config/model.py` (verify_with_parallel_config) and `model_executor/models/llama.py`; SGLang 0.5.23
`srt/models/llama.py`; the other models of both assert the same.
"""

from __future__ import annotations

from collections.abc import Iterator

from partitune.models.architecture import Architecture


def kv_heads(architecture: Architecture) -> set[int]:
    """KV heads of the layers that keep whole heads; latent attention has one for all, fixed states have none."""
    blocks = [layer.attention for layer in architecture.layers if layer.has_token_kv]
    return {block.shards for block in blocks if block.shards > 1}


def head_faults(architecture: Architecture, tp: int) -> Iterator[tuple[str, str]]:
    """(rule, message) where `tp` ranks cannot share the heads."""
    heads = max(layer.attention.heads for layer in architecture.layers)
    if heads % tp:
        legal = ", ".join(str(size) for size in range(1, heads + 1) if heads % size == 0)
        message = f"tensor parallel size {tp} does not divide {heads} attention heads; use {legal}"
        yield "heads-over-tp", message
        return
    for count in sorted(kv_heads(architecture)):
        if count % tp and tp % count:
            message = f"tensor parallel size {tp} neither divides {count} KV heads nor is a multiple of them"
            yield "kv-heads-over-tp", message
