"""What stands behind actors of Ray: the workers of one study, a slot each, and the machines of a worker's group.

Decision: an actor adds nothing but distance: the same Node records, starts and ends processes wherever they run. It
holds the GPUs of its bundle, so that Ray tells the engine which ones are its own. When Ray loses the actor or its
machine, whatever was asked of it raises NodeLost, which makes the trial `lost`: nothing is said about the candidate.
Actors are never restarted by Ray: a new one would know nothing of what the old one started.

A worker of a group stands on the group's first machine and takes nothing of it, as the GPUs belong to the nodes it
makes. A group outlives its candidates but not a loss: after one, Ray would wait to fill it again for ever, so worker
and group go together and the next candidate gets new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from partitune.candidate import Candidate, Result
from partitune.errors import ClusterError, NodeLost, PartituneError
from partitune.execution.driver import Driver, run
from partitune.execution.processes.launch import ProcessCommand
from partitune.execution.processes.masking import keep_secret
from partitune.execution.processes.node import Node
from partitune.execution.ray.groups import RayGroup
from partitune.execution.ray.own_session import leave_session

#: Ray sets it to 1 in every worker that did not ask for CPUs; an engine takes it for the site's wish.
_SET_BY_RAY = "OMP_NUM_THREADS"


class Worker:
    """What runs on a Ray worker: the driver, unpickled once, and one candidate after the other."""

    def __init__(self, driver: Driver) -> None:
        leave_session()
        self._driver = driver

    def run(self, candidate: Candidate, repeat: int = 0) -> Result:
        """Measure one candidate under the load of run `repeat`; whatever goes wrong is in the result."""
        return run(self._driver, candidate, repeat)

    def prepare(self) -> tuple[str, ...]:
        """What the driver checks once."""
        return self._driver.prepare()


class RayWorkers:
    """Those of a study on the connected cluster, and which of them wait for a candidate."""

    def __init__(self, driver: Driver, group: RayGroup | None) -> None:
        import ray

        self._driver = ray.put(driver)
        self._group = group
        self._kind = ray.remote(num_cpus=1 if group is None else 0, max_restarts=0, max_task_retries=0)(Worker)
        self._reserved: dict[Any, Any] = {}  # worker -> its placement group, if it has one
        self._idle: list[Any] = []

    def new(self) -> Any:
        """One more; Ray queues it until there is room."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group, kind = None, self._kind
        if self._group is not None:
            group = ray.util.placement_group(self._group.bundles, strategy="STRICT_SPREAD")
            kind = kind.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
            )
        worker = kind.remote(self._driver)
        self._reserved[worker] = group
        return worker

    def take(self) -> Any:
        """The one that was last put back, or a new one."""
        return self._idle.pop() if self._idle else self.new()

    def put_back(self, worker: Any) -> None:
        """It waits for its next candidate."""
        self._idle.append(worker)

    def release(self, worker: Any) -> None:
        """Give it up, and with its group whatever it started on other machines."""
        import ray

        ray.kill(worker)
        if (group := self._reserved.pop(worker)) is not None:
            ray.util.remove_placement_group(group)

    def close(self) -> None:
        """Give all of them up."""
        for worker in list(self._reserved):
            self.release(worker)


class NodeAgent(Node):
    """The actor: the machine that Ray put it on."""

    def __init__(self, folder: str | None) -> None:
        import ray

        leave_session()
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        super().__init__(address, None if folder is None else Path(folder))

    def address(self) -> str:
        """Of the machine, as the others of its cluster reach it."""
        return self.host


class RayNode:
    """A Node of the group, from afar: whatever is asked of it is asked of the one behind the actor."""

    def __init__(self, agent: Any, host: str) -> None:
        self._agent = agent
        self.host = host

    def start(self, name: str, trial: str, process: ProcessCommand, port: int | None) -> None:
        """Start it there, without what Ray adds to a worker's environment."""
        keep_secret(process.secrets.values())  # what it says comes back to here
        own = process if _SET_BY_RAY in process.env else replace(process, unset=(*process.unset, _SET_BY_RAY))
        self._ask("start", name, trial, own, port)

    def close(self) -> None:
        """End whatever still runs there; on a machine that is gone nothing does."""
        with suppress(NodeLost):
            self._ask("close")

    def __getattr__(self, method: str) -> Callable[..., Any]:
        return partial(self._ask, method)

    def _ask(self, method: str, *arguments: object) -> Any:
        return answer(getattr(self._agent, method).remote(*arguments), self.host)


class RayNodes:
    """The machines of the placement group that this process stands in. Picklable; actors are made where it is used."""

    def __init__(self, gpus: int, folder: str | None = None) -> None:
        self._gpus = gpus
        self._folder = folder
        self._held: tuple[Node, ...] = ()

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_held": ()}

    @contextmanager
    def nodes(self, count: int) -> Iterator[Sequence[Node]]:
        """The first `count` bundles, in their order; actors on all are kept for the next candidate.

        Raises:
            ClusterError: this process stands in no placement group of that many bundles.
            NodeLost: a machine is gone.
        """
        if not self._held:  # of all at once: a second actor on a bundle would wait for ever for the first one's GPUs
            self._held = self._agents()
        if len(self._held) < count:
            raise ClusterError(f"nodes of Ray: found {len(self._held)} in the placement group; allowed: {count}")
        held = self._held[:count]
        try:
            yield held
        finally:
            for node in held:
                node.close()

    def _agents(self) -> tuple[Node, ...]:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = ray.util.get_current_placement_group()
        if group is None:
            raise ClusterError("nodes of Ray: this process stands in no placement group")
        kind: Any = ray.remote(num_cpus=0, num_gpus=self._gpus, max_restarts=0, max_task_retries=0)(NodeAgent)
        agents = [
            kind.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            ).remote(self._folder)
            for bundle in range(group.bundle_count)
        ]
        nodes = [RayNode(agent, answer(agent.address.remote(), f"node {n}")) for n, agent in enumerate(agents)]
        return tuple(cast("Node", node) for node in nodes)  # its other methods are found when they are called


def answer(reference: Any, host: str) -> Any:
    """What an actor answers.

    Raises:
        NodeLost: Ray lost it.
        PartituneError: what was raised there.
    """
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, PartituneError):
            raise error.cause from error
        raise
    except ray.exceptions.RayError as error:
        raise NodeLost(f"{host} is gone: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    """What an error of Ray says before it goes into details; its class where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
