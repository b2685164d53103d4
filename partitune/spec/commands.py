"""How a search space and a candidate are named on the command line, so that a person can copy what was tried.

Decision: the words are those that `--set` reads back, quoted for a shell. A search space that was changed after it was
read is named by its own name and one `--set` for each key that differs; where that cannot say it, there is no command.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from partitune.candidate import Candidate, FlagValue
from partitune.errors import SpecError
from partitune.partition import Partition

if TYPE_CHECKING:  # its reader is slow to load, and a command for a candidate needs none
    from partitune.spec.search_space import SearchSpace

#: Parts of a search space that decide a figure; the others decide what is tried.
_SERVED = frozenset(("model", "cluster", "engine", "parallel", "workload", "goodput"))


def setting(name: str, value: FlagValue | list[Any]) -> str:
    """`name=value` as `--set` reads it."""
    if isinstance(value, list):
        return f"{name}={json.dumps(value)}"
    if isinstance(value, bool):
        return f"{name}={str(value).lower()}"
    if isinstance(value, str) and name != "engine.version":
        import yaml  # slow to load, and most values are no texts

        if yaml.safe_load(value) != value:
            return f"{name}={json.dumps(value)}"
    return f"{name}={value}"


def explain_command(words: Sequence[str], candidate: Candidate, default: Sequence[int]) -> str:
    """The command that explains `candidate`.

    Args:
        words: that name the search space.
        candidate: its partition is left out where it is `default`.
        default: the engine's own split.
    """
    partition = [] if candidate.partition == tuple(default) else ["--partition", Partition(candidate.partition).text]
    flags = [word for name, value in candidate.settings.items() for word in ("--set", setting(name, value))]
    return shlex.join(["partitune", "explain", *words, *partition, *flags])


def words_of(space: SearchSpace) -> tuple[str, ...] | None:
    """What follows `partitune explain` to name `space`; None where its name and `--set` cannot say it."""
    from partitune.spec.search_space import SearchSpace

    try:
        named = _leaves(SearchSpace.load(space.name).resolved())
    except (SpecError, FileNotFoundError):  # the latter: Ray removed the folder that a job still works in
        return None
    wanted = _leaves(space.resolved())
    changed = [name for name in wanted.keys() | named.keys() if named.get(name) != wanted.get(name)]
    words = [space.name]
    for name in sorted(name for name in changed if name.split(".")[0] in _SERVED):
        value = wanted.get(name)
        if name.endswith(".kind") or not isinstance(value, bool | int | float | str | list):
            return None
        words += ["--set", setting(name, value)]
    return tuple(words)


def _leaves(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    leaves: dict[str, Any] = {}
    for name, value in plain.items():
        leaves |= _leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": value}
    return leaves
