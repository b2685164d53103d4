"""How candidates are measured at a site.

Decision: a runner is apart from the search space, because the same space is first simulated and then measured, and
what changes between the two is only this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from partitune import catalog
from partitune.catalog import Kind
from partitune.spec.spec_file import SpecFile
from partitune.spec.strict_model import allowed, number


class Runner(SpecFile):
    """The driver that measures, how many at once, and when to give up."""

    file_kind: ClassVar[Kind] = Kind.RUNNER

    kind: Annotated[Literal["runner"], allowed("runner")]
    driver: Annotated[Literal["simulator"], allowed("simulator")]
    workers: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        allowed("a whole number from 1 to 1024, or auto (one a CPU core)"),
    ] = "auto"
    timeout_s: Annotated[float, number(0, 604_800, "seconds for one candidate", above=True)] = 600.0


def load_runner(name: str, *, project: Path = Path()) -> Runner:
    """Find and read a runner by name or path.

    Raises:
        SpecError: not found, or every fault of the file.
    """
    return Runner.from_yaml(catalog.find(Kind.RUNNER, name, project=project))
