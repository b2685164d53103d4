"""Which releases of an engine take a checkpoint's method of quantisation.

Decision: read in the releases' own tables by benchmarks/read_quantisations.py and kept as the runs of releases that
have a method. Unlike a class of models (`architectures`) a method that no release has is refused, since both engines
end the start with "unknown quantization method"; a plug-in's checkpoint is described by its bits, without the method's
name. Of the releases between two that were read and differ nobody knows which have it: they count as having it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from partitune.engines.deployment import Deployment
from partitune.engines.release_table import ReleaseTable
from partitune.engines.versions import Version, parse_version

#: A method of a config -> names under which an engine takes it, besides its own. vLLM 0.33.0 and SGLang 0.5.23,
#: `override_quantization_method` of each; ModelOpt's by the algorithm beside it.
_TAKEN_AS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "auto-round": ("inc",),
        "intel/auto-round": ("auto-round", "inc"),
        "awq": ("awq_marlin", "auto_awq"),
        "gptq": ("gptq_marlin", "auto_gptq"),
        "compressed_tensors": ("compressed-tensors",),
        "modelopt": ("modelopt_fp8", "modelopt_fp4", "modelopt_mixed"),
        "modelopt_fp8": ("modelopt",),
        "modelopt_fp4": ("modelopt",),
        "modelopt_mixed": ("modelopt",),
        "mxfp8": ("modelopt_mxfp8",),
    }
)


class Run(NamedTuple):
    """Releases that have a method."""

    after: Version | None  # the last known to lack it before them; None: the oldest that was read is one of them
    until: Version | None  # the first known to lack it behind them; None: the newest that was read is one of them

    def holds(self, release: Version) -> bool:
        """Whether `release` may be one of them."""
        return (self.after is None or self.after < release) and (self.until is None or release < self.until)


class QuantisationTable(ReleaseTable):
    """The methods that the releases of one engine take."""

    table = "quantisations.csv"

    @cached_property
    def runs(self) -> Mapping[str, Sequence[Run]]:
        """Method -> its runs, oldest first."""
        runs: dict[str, list[Run]] = {}
        for row in self.rows:
            after, until = (parse_version(row[key]) if row[key] else None for key in ("after", "until"))
            runs.setdefault(row["method"], []).append(Run(after, until))
        return runs

    def faults(self, deployment: Deployment) -> Iterator[tuple[str, str, str]]:
        """Rule, message and source, where this release does not take what the checkpoint is stored in.

        A release older or newer than those that were read is held against the nearest of them.
        """
        method, (oldest, newest) = deployment.architecture.quantisation, self.span
        version = parse_version(deployment.version)
        names = (method, *_TAKEN_AS.get(method, ()))
        runs = [run for name in names for run in self.runs.get(name, ())]
        if not method or any(run.holds(min(max(version, oldest), newest)) for run in runs):
            return
        message = (
            f"{self._engine} {version} takes no {method} checkpoint{_when(runs, version)}; allowed: another checkpoint "
            "of the model, or, where a plug-in brings the method, "
            "config: {quantization_config: null, weight_bits: 4.5} with its bits"
        )
        yield "quantisation-missing", message, f"{self._file} of {oldest} to {newest}"


def _when(runs: Sequence[Run], version: Version) -> str:
    """In which releases it is otherwise: the next that take it, else the last that did."""
    if later := [run.after for run in runs if run.after is not None and run.after >= version]:
        return f", which comes after {min(later)}"
    if earlier := [run.until for run in runs if run.until is not None]:
        return f", which left by {max(earlier)}"
    return ", as no release that was read does"
