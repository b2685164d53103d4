"""Which keys differ between two resolved specs, in words.

Decision: a study that goes on under another spec would mix trials that cannot be compared, so resuming refuses unless
that was asked for; either way the keys are named, as a digest tells nobody what to undo.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from partitune.errors import shortened
from partitune.store.records import Revision, StudyTerms

_ABSENT = object()  # in place of a value


def changes(before: object, after: object, key: str = "") -> list[str]:
    """One `key.path: old -> new` for each leaf that differs, in the order of the keys."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        inner = [
            (f"{key}.{name}" if key else name, before.get(name, _ABSENT), after.get(name, _ABSENT))
            for name in sorted({*before, *after})
        ]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        inner = [(f"{key}[{i}]", old, new) for i, (old, new) in enumerate(zip(before, after, strict=True))]
    else:
        same = before == after and type(before) is type(after)
        return [] if same else [f"{key}: {_short(before)} -> {_short(after)}"]
    return [change for path, old, new in inner for change in changes(old, new, path)]


def meaning(terms: StudyTerms | Revision, may_differ: Collection[str]) -> dict[str, Any]:
    """What the trials of a study mean: its spec but for the top-level keys `may_differ`, and its runner."""
    return {"runner": terms.runner, **{key: value for key, value in terms.spec.items() if key not in may_differ}}


def top_level_key(change: str) -> str:
    """The top-level key of one of `changes`."""
    return re.split(r"[.\[:]", change)[0]


def _short(value: object) -> str:
    return "(absent)" if value is _ABSENT else shortened(repr(value), 60)
