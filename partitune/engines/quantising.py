"""The flag that names how weights are quantised: with which checkpoints it goes, and what it makes of one in 16 bits.

Decision: an engine quantises a 16-bit checkpoint while it loads it, or takes a checkpoint as it is stored; a flag that
names another method than the checkpoint has is refused by both, and is here. Which names mean what is each engine's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.rules import Violation
from partitune.engines.stored import quantised_as
from partitune.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Quantising:
    """What one engine's `quantization` takes."""

    engine: str  # as people write it
    source: str  # where its rule stands
    #: Name -> the format of `stored.FORMATS` that a 16-bit checkpoint is brought into.
    online: Mapping[str, str]
    #: Name of the flag -> methods of checkpoints it goes with beside one of its own name.
    goes_with: Mapping[str, tuple[str, ...]]
    removed: Mapping[str, str]  # names that it refuses -> why
    opaque: frozenset[str]  # names that store weights in ways which are not modelled

    def faults(self, deployment: Deployment) -> Iterator[Violation]:
        """Where the flag and the checkpoint do not go together."""
        name, stored = _named(deployment.flags), deployment.architecture.quantisation
        if not name or name in self.opaque or "weight_bits" in deployment.architecture.config:
            return  # whatever the search space says of the bits stands
        if not stored and name in self.removed:
            yield Violation("quantization", f"quantization {name}: {self.removed[name]}", self.source)
        elif not stored and name not in self.online:
            message = (
                f"quantization {name} needs a checkpoint that is stored so, and this one has 16-bit weights; "
                f"{self.engine} quantises while loading with {', '.join(self.online)}"
            )
            yield Violation("quantization", message, self.source)
        elif stored and name != stored and stored not in self.goes_with.get(name, ()):
            message = f"quantization {name} does not go with a checkpoint quantised by {stored}; leave the flag out"
            yield Violation("quantization", message, self.source)

    def stored(self, deployment: Deployment) -> Architecture:
        """The model with its weights as the flag has them stored; the checkpoint's own where it is quantised."""
        architecture, name = deployment.architecture, _named(deployment.flags)
        if architecture.quantisation or name not in self.online:
            return architecture
        return quantised_as(architecture, self.online[name])

    def left_out(self, deployment: Deployment) -> dict[str, str]:
        """The flag with the reason, where it stores weights in a way that is not modelled."""
        name = _named(deployment.flags)
        return {"quantization": f"how {name} stores weights is not modelled"} if name in self.opaque else {}


def _named(flags: Mapping[str, FlagValue]) -> str:
    return str(flags.get("quantization") or "").lower()
