"""Which keys differ between two resolved specs, in words.

Decision: a study that goes on under another spec mixes trials that cannot be compared, so resuming refuses; the
message has to name the keys, as a digest tells nobody what to undo.
"""

from __future__ import annotations

from collections.abc import Mapping


def changes(before: object, after: object, key: str = "") -> list[str]:
    """One `key.path: old -> new` for each leaf that differs, in the order of the keys."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        found = []
        for name in sorted({*before, *after}):
            path = f"{key}.{name}" if key else name
            if name not in after:
                found.append(f"{path}: {_short(before[name])} -> (absent)")
            elif name not in before:
                found.append(f"{path}: (absent) -> {_short(after[name])}")
            else:
                found += changes(before[name], after[name], path)
        return found
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        return [
            line
            for i, (old, new) in enumerate(zip(before, after, strict=True))
            for line in changes(old, new, f"{key}[{i}]")
        ]
    same = before == after and type(before) is type(after)
    return [] if same else [f"{key}: {_short(before)} -> {_short(after)}"]


def _short(value: object) -> str:
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
