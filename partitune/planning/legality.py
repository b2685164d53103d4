"""Which partitions a model admits, as reasons for a person and as windows for the solver.

Decision: one rule set, two forms. `illegal_reasons` explains a vector that somebody wrote; `allowed_windows` is the
same rules as a boolean array over (stage, first layer, end layer), so that the exact solver never proposes what the
first would refuse. Rules come from the engines (facts of vLLM 0.32/0.33):

* every stage owns at least one layer: `get_pp_indices` allows zero, the KV planner then divides by zero;
* in a hybrid model every stage owns a layer that keeps KV per token, or block sizes stop being unified and capacity
  falls about six-fold (`platforms/interface.py`, `update_block_size_for_backend` returns early);
* a cut must not separate layers that share KV or an index (`Architecture.illegal_cuts`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from partitune.errors import InfeasibleSpace
from partitune.models.architecture import Architecture

Windows = NDArray[np.bool_]
Bounds = tuple[tuple[int, int], ...]  # per stage: fewest and most layers


def stage_bounds(
    stages: int, layers: int, *, fewest: int = 1, most: int | None = None, pinned: Mapping[int, int] | None = None
) -> Bounds:
    """Fewest and most layers of every stage.

    Args:
        stages: pipeline stages.
        layers: layers of the model.
        fewest: lower bound of every stage that is not pinned.
        most: upper bound of every stage that is not pinned; None: what the others leave.
        pinned: stage -> exact number of layers.

    Raises:
        InfeasibleSpace: no vector of `stages` entries within the bounds sums to `layers`.
    """
    pins = dict(pinned or {})
    unknown = sorted(stage for stage in pins if not 0 <= stage < stages)
    if unknown:
        raise InfeasibleSpace(f"pinned stage {unknown[0]} does not exist: stages are 0 to {stages - 1}")
    lowest, highest = max(fewest, 1), layers if most is None else most
    bounds = tuple((pins[s], pins[s]) if s in pins else (lowest, highest) for s in range(stages))
    empty = next(((s, low, high) for s, (low, high) in enumerate(bounds) if high < low or low < 1), None)
    if empty:
        raise InfeasibleSpace(
            f"stage {empty[0]} must have between {empty[1]} and {empty[2]} layers, which is impossible"
        )
    least, greatest = sum(low for low, _ in bounds), sum(high for _, high in bounds)
    if not least <= layers <= greatest:
        side = f"at least {least}" if layers < least else f"at most {greatest}"
        raise InfeasibleSpace(f"{stages} stages within their bounds hold {side} layers, the model has {layers}")
    return bounds


def allowed_windows(architecture: Architecture, bounds: Bounds) -> Windows:
    """True at [s, i, j] where stage `s` may own layers i..j-1.

    Shape [stages, layers + 1, layers + 1]; the rules of `illegal_reasons` plus the bounds of each stage.
    """
    layers = len(architecture.layers)
    first, end = np.ogrid[: layers + 1, : layers + 1]
    legal_cut = np.array([cut not in architecture.illegal_cuts or cut in (0, layers) for cut in range(layers + 1)])
    common = legal_cut[:, None] & legal_cut[None, :]
    if architecture.is_hybrid:
        kept = np.concatenate(([0], np.cumsum([layer.has_token_kv for layer in architecture.layers])))
        common = common & (kept[None, :] - kept[:, None] >= 1)
    fewest, most = np.array(bounds).T[:, :, None, None]
    windows: Windows = common & (end - first >= fewest) & (end - first <= most)
    windows[0, 1:] = windows[1:, 0] = False  # the first stage begins at layer 0, and no other does
    windows[-1, :, :-1] = windows[:-1, :, -1] = False
    return windows
