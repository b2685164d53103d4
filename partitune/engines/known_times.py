"""What is known of a release's speed where no kernel table says it: told beside a figure, never guessed into it.

Decision: a published time of a whole server under two releases says that one is slower, and not which kernel is, nor
for another prompt; a kernel that a release picks and that was measured under another engine only is no measurement of
it either. So both are sentences with their source, for the models, GPUs and releases that they were published of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from partitune.engines.versions import Version
from partitune.hardware.gpus import Gpu
from partitune.models.architecture import Architecture, Ffn


@dataclass(frozen=True, slots=True)
class KnownTimes:
    """One thing that is known: of which releases, models and GPUs, and what it says."""

    since: Version  # the first release that it is true of
    until: Version | None  # the first release that it is no longer true of; None: the newest read is one of them
    models: Callable[[Architecture], bool]
    gpus: Callable[[Gpu], bool]
    text: str  # one sentence with its source, no full stop

    def concerns(self, architecture: Architecture, gpu: Gpu, version: Version) -> bool:
        """Whether it is to be told."""
        in_time = self.since <= version and (self.until is None or version < self.until)
        return in_time and self.models(architecture) and self.gpus(gpu)


def is_kimi_k3(architecture: Architecture) -> bool:
    """True for the model that releases were published to have become faster with."""
    return architecture.architecture == "KimiK3ForConditionalGeneration"


def has_mxfp4_experts(architecture: Architecture) -> bool:
    """True where 4-bit experts may run with 8-bit activations; gpt-oss keeps 16 bits in every engine."""
    blocks = (layer.ffn for layer in architecture.layers if layer.ffn.kind is Ffn.MOE)
    mxfp4 = any(block.expert_dtype == "mxfp4" for block in blocks)
    return mxfp4 and not architecture.architecture.startswith("GptOss")


def any_gpu(gpu: Gpu) -> bool:  # noqa: ARG001  (as the others)
    """True."""
    return True


def is_data_centre_blackwell(gpu: Gpu) -> bool:
    """True for B200, B300 and their Grace twins."""
    return gpu.generation.value.data_centre_blackwell
