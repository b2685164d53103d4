"""What Toy refuses. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

from collections.abc import Iterator

from partitune.engines.toy.flags import TOY_FLAGS

from partitune.engines.deployment import Deployment, command_flags
from partitune.engines.flags import unknown_flag
from partitune.engines.rules import Violation, head_faults

SOURCE = "Toy 1.2 program.py"


def faults(deployment: Deployment) -> Iterator[Violation]:
    """Every rule that the deployment breaks."""
    for name, value in command_flags(deployment.flags).items():
        if name not in TOY_FLAGS:
            yield Violation("unknown-flag", unknown_flag(name, TOY_FLAGS, f"Toy {deployment.version}"), SOURCE)
        elif fault := TOY_FLAGS[name].fault(value):
            yield Violation("flag-value", f"{name}: {fault}", SOURCE)
    layout, layers = deployment.layout, len(deployment.architecture.layers)
    if deployment.stages > layers:
        yield Violation("fewer-layers-than-stages", f"{layers} layers for {deployment.stages} stages", SOURCE)
    yield from head_faults(deployment, SOURCE)
    if layout.gpus != layout.tp * layout.pp or layout.dcp > 1 or layout.expert_ranks > 1:
        yield Violation("parallelism-missing", f"{layout.name}: Toy knows tp and pp only", SOURCE)
