"""What one measurement reserves of a Ray cluster: the same GPUs on several machines at once, or nothing.

Decision: a trial that spans nodes is one placement group with a bundle per node (STRICT_SPREAD): a single actor that
asks for 16 GPUs can never stand on two machines of eight, and two actors that ask one after the other can block each
other for ever. The group is made for a slot and serves candidate after candidate; where layouts vary it is the cluster
of the search space, of which a small layout uses the first nodes.
How many slots there are follows from what the cluster has; a request that no free cluster could hold is refused at once
and says what is missing, as Ray itself would wait for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from partitune.errors import ClusterError


@dataclass(frozen=True, slots=True)
class RayMachine:
    """One living node of a cluster."""

    address: str
    gpus: int  # that Ray was told of


@dataclass(frozen=True, slots=True)
class RayGroup:
    """The nodes of one measurement."""

    nodes: int
    gpus: int  # on each
    hosts: tuple[str, ...] = ()  # addresses of the nodes in the order of the stages; empty: any

    @property
    def bundles(self) -> list[dict[str, float]]:
        """What Ray is asked for, node by node. A host is named by the resource that Ray gives every node."""
        own: dict[str, float] = {"GPU": self.gpus}
        return [{**own, f"node:{host}": 0.001} for host in self.hosts] if self.hosts else [own] * self.nodes

    def fits(self, machines: Sequence[RayMachine]) -> int:
        """How many such groups the machines hold at the same time, if nobody else uses them."""
        if self.hosts:
            by_address = {machine.address: machine for machine in machines}
            return min(by_address[host].gpus // self.gpus if host in by_address else 0 for host in self.hosts)
        rooms = [machine.gpus // self.gpus for machine in machines]
        most = sum(rooms) // self.nodes
        # So many can be dealt out, none of them twice to one machine.
        spread = (n for n in range(most, 0, -1) if sum(min(room, n) for room in rooms) >= n * self.nodes)
        return next(spread, 0)

    def check(self, machines: Sequence[RayMachine], where: str) -> None:
        """Raise ClusterError when not even one group fits: what was asked for, and what every node has."""
        if self.fits(machines):
            return
        there = ", ".join(f"{machine.address} has {machine.gpus}" for machine in machines) or "no node lives"
        fitting = sum(machine.gpus >= self.gpus for machine in machines)
        short = f"{fitting} of {len(machines)} nodes have {self.gpus} GPUs or more"
        wanted = f"{self.nodes} node{'s' if self.nodes > 1 else ''} with {self.gpus} GPUs"
        if absent := [host for host in self.hosts if host not in {machine.address for machine in machines}]:
            short = f"{', '.join(absent)} is not in the cluster"
        raise ClusterError(
            f"{where} can never run this search: a trial needs {wanted}{' each' if self.nodes > 1 else ''}, and {short}"
            f" ({there}). Check parallel and cluster of the search space, nodes.hosts of the runner, and --ray-address"
        )


def machines() -> tuple[RayMachine, ...]:
    """The living nodes of the connected cluster, by address."""
    import ray

    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    living = [
        RayMachine(node["NodeManagerAddress"], int(node["Resources"].get("GPU", 0))) for node in nodes if node["Alive"]
    ]
    return tuple(sorted(living, key=lambda machine: (machine.address, -machine.gpus)))
