"""What a study may be called, and a search space, which gives a study its name: one rule for both, in any script."""

from __future__ import annotations

#: What is allowed, as messages and the reference of YAML keys say it.
STUDY_NAME = "printable characters, no space at either end"


def study_name_fault(name: str) -> str | None:
    """Why `name` can be the name of no study; None when it can."""
    fits = name and name.isprintable() and name == name.strip()
    return None if fits else f"found {name!r}; allowed: {STUDY_NAME}"
