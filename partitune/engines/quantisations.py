"""Which releases of an engine take a checkpoint's method of quantisation.

Decision: read in the releases' own tables by benchmarks/read_quantisations.py and kept as the runs of releases that
have a method. Unlike a class of models (`architectures`) a method that no release has is refused, since both engines
end the start with "unknown quantization method"; a plug-in's checkpoint is described by its bits, without the method's
name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from partitune.engines.deployment import Deployment
from partitune.engines.release_table import PresenceTable
from partitune.engines.versions import parse_version

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


class QuantisationTable(PresenceTable):
    """The methods that the releases of one engine take."""

    table, column = "quantisations.csv", "method"

    def faults(self, deployment: Deployment) -> Iterator[tuple[str, str, str]]:
        """Rule, message and source, where this release does not take what the checkpoint is stored in.

        A release older or newer than those that were read is held against the nearest of them.
        """
        method, (oldest, newest) = deployment.architecture.quantisation, self.span
        version = parse_version(deployment.version)
        names = (method, *_TAKEN_AS.get(method, ()))
        if not method or self.has(names, version):
            return
        when = self.when(names, version)
        elsewhere = f"which {when}" if when else "as no release that was read does"
        message = (
            f"{self._engine} {version} takes no {method} checkpoint, {elsewhere}; allowed: another checkpoint of the "
            "model, or, where a plug-in brings the method, "
            "config: {quantization_config: null, weight_bits: 4.5} with its bits"
        )
        yield "quantisation-missing", message, f"{self._file} of {oldest} to {newest}"
