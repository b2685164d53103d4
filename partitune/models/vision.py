"""Size of a vision tower, from whatever its config calls things.

Decision: a tower is one lump on the first stage, under 1 % of the models that matter here, so one plain count (patch
embedding, positions, transformer layers, merger) serves all towers; a tower with unreadable fields is a note, not an
error, but a field of the wrong type is an error as everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from partitune.models.fields import LAYERS_MAX, Fields


@dataclass(frozen=True, slots=True)
class Vision:
    """Parameters of a tower (16-bit) and what could not be known."""

    params: int = 0
    notes: tuple[str, ...] = ()


def cuts_before_fed_layers(config: Fields) -> frozenset[int]:
    """Boundaries that part the first stage from layers that features of the tower are added to (DeepStack).

    As many of the first layers as the tower has taps: vLLM 0.33 and SGLang 0.5.23 `models/qwen3_vl.py`.

    Raises:
        SpecError: an ill-typed key.
    """
    tower = config.section("vision_config")
    taps = tower.integers("deepstack_visual_indexes", low=0, high=LAYERS_MAX) if tower else []
    return frozenset(range(1, len(taps)))


def read_vision(config: Fields, text_hidden: int) -> Vision:
    """Parameters of `vision_config` and its projector; zero without one.

    Raises:
        SpecError: ill-typed fields.
    """
    tower = config.section("vision_config")
    if tower is None or not tower.data:
        return Vision()
    depth = tower.integer_or_none(
        "vt_num_hidden_layers", "num_hidden_layers", "depth", "layers", "n_layers", high=LAYERS_MAX
    )
    hidden = tower.integer_or_none("vt_hidden_size", "hidden_size", "width", "embed_dim")
    if depth is None or hidden is None:
        return Vision(notes=("the vision tower is not counted: its config names no depth and width",))
    inner = tower.integer("vt_intermediate_size", "intermediate_size", default=4 * hidden)
    qkv = tower.integer("qkv_hidden_size", default=hidden)
    biases = 6 * hidden + inner + 3 * qkv
    layer = 4 * hidden * qkv + 2 * hidden * inner + biases
    patch = tower.integer("patch_size", default=14, high=1024)
    frames = tower.integer("temporal_patch_size", default=1, high=64)
    grid = tower.integer("init_pos_emb_height", default=0, low=0, high=4096) * tower.integer(
        "init_pos_emb_width", default=0, low=0, high=4096
    )
    positions = tower.integer("num_position_embeddings", default=grid, low=0)
    merge = tower.integer("spatial_merge_size", default=2, high=64)
    merged = hidden * merge * merge
    projector = merged * merged + merged * tower.integer("out_hidden_size", "text_hidden_size", default=text_hidden)
    return Vision(depth * layer + 3 * patch * patch * frames * hidden + positions * hidden + projector)
