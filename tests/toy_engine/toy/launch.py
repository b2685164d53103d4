"""The words that start Toy on every node. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from partitune.engines.toy.benchmark import ToyBench
from partitune.engines.toy.flags import TOY_FLAGS

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.launch import LOOPBACK, RANK_VARIABLES, Launch, Start


class ToyLaunch(Launch):
    """`toy serve`."""

    title = "Toy"
    partition_env = "TOY_STAGE_LAYERS"
    flags = TOY_FLAGS
    model_key = "model"
    program = ("toy",)
    model_words = ("serve", "--model")
    help_words = ("serve", "--help")
    own_flags = frozenset({"served_name", "host", "port", "nodes", "node", "meet_at", "config"})
    removed = (partition_env, *RANK_VARIABLES)
    scheduling_flags = frozenset({"batch_tokens", "running_requests", "page_tokens", "memory_share"})
    load_generator = ToyBench()

    def parallel_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """In Toy's words."""
        return {"stages": deployment.layout.pp, "tensor_ranks": deployment.layout.tp}

    def node_words(self, start: Start, node: int) -> tuple[str, ...]:
        """The first node serves."""
        words = ["--served-name", start.served_name, "--host", LOOPBACK, "--port", str(start.port)]
        if len(start.hosts) > 1:
            words += ["--nodes", str(len(start.hosts)), "--node", str(node)]
            words += ["--meet-at", f"{start.hosts[0]}:{start.rendezvous_port}"]
        return tuple(words)

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """One command a node."""
        start = f"toy serve --config {shlex.quote(config)}"
        if nodes == 1:
            return (start,)
        return tuple(f"{start} --nodes {nodes} --node {node} --meet-at NODE_0:20000" for node in range(nodes))
