"""partitune finds the pipeline partition and scheduler flags of an LLM server, and shows why.

What stands in `__all__` is the public Python API; docs/python-api.md shows it. Importing it costs milliseconds: numpy,
Optuna and Ray are loaded by the call that needs them.
"""

from partitune.api import explain, export, layouts, load_search_space, load_study, search, solve
from partitune.candidate import Candidate, Result
from partitune.errors import (
    BenchmarkFailed,
    ClusterError,
    InfeasibleSpace,
    LaunchFailed,
    NodeLost,
    OutOfMemory,
    PartituneError,
    Refused,
    RunError,
    SpecError,
    Stalled,
    StoreError,
    TimedOut,
    Unhealthy,
)
from partitune.version import __version__

__all__ = [
    "BenchmarkFailed",
    "Candidate",
    "ClusterError",
    "InfeasibleSpace",
    "LaunchFailed",
    "NodeLost",
    "OutOfMemory",
    "PartituneError",
    "Refused",
    "Result",
    "RunError",
    "SpecError",
    "Stalled",
    "StoreError",
    "TimedOut",
    "Unhealthy",
    "__version__",
    "explain",
    "export",
    "layouts",
    "load_search_space",
    "load_study",
    "search",
    "solve",
]
