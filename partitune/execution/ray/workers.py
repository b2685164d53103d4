"""Ray workers for one study: made for a slot, and given up with whatever they reserved.

Decision: a worker of a group stands on the group's first machine and takes nothing of it, as the GPUs belong to the
agents it makes (`ray_nodes`). A group outlives its candidates but not a loss: after one, Ray would wait to fill it
again for ever, so worker and group go together and the next candidate gets new ones.
"""

from __future__ import annotations

from typing import Any

from partitune.candidate import Candidate, Result
from partitune.execution.driver import Driver, prepare, run
from partitune.execution.ray.groups import RayGroup


class Worker:
    """What runs on a Ray worker: the driver, unpickled once, and one candidate after the other."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def run(self, candidate: Candidate, repeat: int = 0) -> Result:
        """Measure one candidate under the load of run `repeat`; whatever goes wrong is in the result."""
        return run(self._driver, candidate, repeat)

    def prepare(self) -> tuple[str, ...]:
        """What the driver checks once."""
        return prepare(self._driver)


class RayWorkers:
    """Makes them on the connected cluster."""

    def __init__(self, driver: Driver, group: RayGroup | None) -> None:
        import ray

        self._driver = ray.put(driver)
        self._group = group
        self._kind = ray.remote(num_cpus=1 if group is None else 0, max_restarts=0, max_task_retries=0)(Worker)
        self._reserved: dict[Any, Any] = {}  # worker -> its placement group

    def new(self) -> Any:
        """One more; Ray queues it until there is room."""
        if self._group is None:
            return self._kind.remote(self._driver)
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = ray.util.placement_group(self._group.bundles, strategy="STRICT_SPREAD")
        first = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        worker = self._kind.options(scheduling_strategy=first).remote(self._driver)
        self._reserved[worker] = group
        return worker

    def release(self, worker: Any) -> None:
        """Give it up, and with its group whatever it started on other machines."""
        import ray

        ray.kill(worker)
        if (group := self._reserved.pop(worker, None)) is not None:
            ray.util.remove_placement_group(group)
