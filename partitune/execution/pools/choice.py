"""Where the candidates of a runner are measured: in this process, on Ray workers, or on groups of machines.

Decision: it follows from the runner and is never guessed twice. A server that is started on this machine has all of it,
so one candidate runs at a time and in this process; one that spans machines reserves them as a group of a Ray cluster;
commands and a site's own classes run as many at once as the runner says, for what they start is elsewhere.
"""

from __future__ import annotations

from partitune.errors import SpecError
from partitune.execution.driver import Driver, Spanning
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool
from partitune.execution.pools.warming import WarmingPool
from partitune.spec.runner import Runner


def choose_pool(driver: Driver, runner: Runner, wanted: str, ray_address: str | None) -> Pool:
    """The pool for `driver`, not yet entered.

    Args:
        driver: of `drivers.choose`.
        runner: that it was made for.
        wanted: `ray` or `local`, as the command line says.
        ray_address: of a running cluster; None: one of its own where one is needed.

    Raises:
        SpecError: what was asked for cannot be.
    """
    slots = None if runner.workers == "auto" else runner.workers
    if isinstance(driver, Spanning) and (group := driver.group) is not None:
        if wanted == "local":
            raise SpecError(f"--pool: found local, and runner {runner.name} starts nodes of Ray; allowed: ray")
        return RayPool(driver, ray_address, slots, group=group)
    if runner.starts_server and ray_address is not None:
        raise SpecError(
            f"--ray-address: found beside runner {runner.name}, which starts the engine on this machine; allowed: "
            "a runner with nodes.start: ray"
        )
    if runner.starts_server or wanted == "local":
        return LocalPool(driver)
    if runner.driver == "simulator":
        return WarmingPool(driver, slots) if ray_address is None else RayPool(driver, ray_address, slots)
    if (slots or 1) == 1 and ray_address is None:
        return LocalPool(driver)
    return RayPool(driver, ray_address, slots or 1)
