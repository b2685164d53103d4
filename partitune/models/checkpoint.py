"""What the files of a checkpoint say that lie beside its config.json: bytes in all, and bytes of every layer.

Decision: headers only. A safetensors file begins with the names, shapes and offsets of its tensors, so the exact bytes
of a layer cost a read of some kilobytes a shard; an index alone (`weight_map`, `total_size`) gives the sum and the
layers' names. A shard that is missing or is no safetensors file (a pointer of Git LFS) leaves what the index says.

Source: safetensors' format (8 bytes of header length, little endian, then JSON with `data_offsets`; at most 100 MB).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

_HEADER_MAX = 100_000_000
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,5})\.")
#: Parts of a tensor's name that put it outside the language model's own layers.
_ELSEWHERE = re.compile(r"vision|visual|audio|mtp|draft|projector|encoder", re.IGNORECASE)
_WIDE = ("F32", "F64")


def layer_of(tensor: str) -> int | None:
    """The layer of the language model that a tensor belongs to by its name; None: none."""
    layer = None if _ELSEWHERE.search(tensor) else _LAYER.search(tensor)
    return int(layer.group(1)) if layer else None


def stored_layers(folder: Path, shards: Collection[str]) -> dict[int, int]:
    """Bytes of every layer that the headers of a checkpoint's files count; empty where one of them cannot be read.

    Matrices in 32 bits or more count 16, as engines load them.

    Args:
        folder: of the checkpoint.
        shards: names of its files.
    """
    stored: Counter[int] = Counter()
    try:
        for shard in sorted(shards):
            for tensor, entry in _header(folder / Path(shard).name).items():
                if (layer := layer_of(tensor)) is not None:
                    stored[layer] += _bytes(tensor, entry)
    except (OSError, ValueError, LookupError, TypeError, RecursionError, OverflowError):
        return {}
    return dict(stored)


def _header(path: Path) -> Mapping[str, Mapping[str, object]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 2 <= length <= _HEADER_MAX:
            raise ValueError(f"{path}: no safetensors file")
        header = json.loads(file.read(length))
    if not isinstance(header, dict):
        raise ValueError(f"{path}: no safetensors header")
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def _bytes(tensor: str, entry: Mapping[str, object]) -> int:
    offsets, shape = entry["data_offsets"], entry["shape"]
    if not isinstance(offsets, list) or not isinstance(shape, list):
        raise ValueError(f"{tensor}: no offsets")
    if entry["dtype"] in _WIDE and tensor.endswith(".weight"):
        return 2 * math.prod(int(size) for size in shape)
    return max(0, int(offsets[1]) - int(offsets[0]))
