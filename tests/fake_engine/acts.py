"""How the fake engine is told to misbehave."""

from __future__ import annotations

import os


def act(name: str) -> str | None:
    """What follows `name:` in FAKE_ENGINE_ACT, empty where nothing does; None when that act is not asked for."""
    for word in os.environ.get("FAKE_ENGINE_ACT", "").split(","):
        found, _, value = word.partition(":")
        if found == name:
            return value
    return None
