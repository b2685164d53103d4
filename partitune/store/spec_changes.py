"""Which keys differ between two resolved specs, in words.

Decision: a study that goes on under another spec would mix trials that cannot be compared, so resuming refuses unless
that was asked for; either way the keys are named, as a digest tells nobody what to undo.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any


def changes(before: object, after: object, key: str = "") -> list[str]:
    """One `key.path: old -> new` for each leaf that differs, in the order of the keys."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        lines = []
        for name in sorted({*before, *after}):
            path = f"{key}.{name}" if key else name
            if name not in after:
                lines.append(f"{path}: {_short(before[name])} -> (absent)")
            elif name not in before:
                lines.append(f"{path}: (absent) -> {_short(after[name])}")
            else:
                lines += changes(before[name], after[name], path)
        return lines
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for i, (old, new) in enumerate(zip(before, after, strict=True))
            for line in changes(old, new, f"{key}[{i}]")
        ]
    same = before == after and type(before) is type(after)
    return [] if same else [f"{key}: {_short(before)} -> {_short(after)}"]


def meaning(spec: Mapping[str, Any], runner: str, may_differ: Collection[str]) -> dict[str, Any]:
    """What the trials of a study mean: its spec but for the top-level keys `may_differ`, and its runner."""
    return {"runner": runner, **{key: value for key, value in spec.items() if key not in may_differ}}


def top_level_key(change: str) -> str:
    """The top-level key of one of `changes`."""
    return re.split(r"[.\[:]", change)[0]


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
