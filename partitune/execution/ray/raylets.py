"""Whether a running Ray cluster will let an engine that has Ray place its ranks do what it is told.

Decision: such an engine (vLLM) sends the server's variables to its workers but lets a variable that is there already
win. A partition in the environment of a raylet (somebody exported it before `ray start`) thus silently replaces that of
every trial, on that node only. It cannot be removed from here, so the study is refused, and says on which node. The
same goes for GPUs that are not there: the engine would wait for them for half an hour.

Source: vLLM 0.32.0 `v1/executor/ray_executor_v2.py` (initialize_worker: setdefault), `v1/executor/ray_env_utils.py`.
"""

from __future__ import annotations

import logging
import os

from partitune.errors import ClusterError, SpecError
from partitune.execution.ray.address import reach
from partitune.execution.ray.groups import machines
from partitune.execution.ray.sigterm import own_sigterm
from partitune.execution.server.setup import Setup

#: Seconds that a node may take to start a worker.
ANSWER_LIMIT_S = 120.0


def check_raylets(setup: Setup) -> None:
    """Look at every node of the Ray cluster that the engine will join.

    Raises:
        ClusterError: no cluster, or fewer GPUs than ranks.
        SpecError: a node has a variable that would win over the trial's.
    """
    import ray

    address = setup.runner.env.get("RAY_ADDRESS") or os.environ.get("RAY_ADDRESS") or "auto"
    connected_before, engine = ray.is_initialized(), setup.server.engine.title
    try:
        if not connected_before:
            if address not in ("auto", "local"):
                reach(address)
            with own_sigterm():
                ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ClusterError(
            f"Ray at {address} cannot be used: {error}. {engine}'s Ray executor needs a running cluster"
        ) from error
    try:
        nodes = machines()
        if sum(node.gpus for node in nodes) < setup.most_gpus:
            there = ", ".join(f"{node.address} has {node.gpus}" for node in nodes)
            raise ClusterError(f"Ray at {address}: a trial needs {setup.most_gpus} GPUs, and {there}")
        stale = surprises(setup)
    finally:
        if not connected_before:
            ray.shutdown()
    if stale:
        raise SpecError(
            f"Ray at {address}: {'; '.join(stale)}. {engine} lets a worker's own variable win, so every trial would "
            "run with it. Restart Ray on these nodes without it (`ray stop`, unset, `ray start`)"
        )


def surprises(setup: Setup) -> list[str]:
    """One phrase for every variable of a living node that would win over the trial's; asked of a worker on each."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    living = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    # A function without a name in a module: Ray sends its text, and partitune need not be installed on those nodes.
    look = ray.remote(num_cpus=0, max_retries=0)(lambda: dict(os.environ))
    asked = [
        look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in living
    ]
    answers: list[dict[str, str]] = ray.get(asked, timeout=ANSWER_LIMIT_S)
    return [
        f"the raylet of {node['NodeManagerAddress']} has {name}={value}"
        for node, variables in zip(living, answers, strict=True)
        for name, value in setup.server.surprises(variables, tuple(setup.searched)).items()
    ]
