"""What a runner means: its driver, and the pool in which its candidates are measured.

Decision: a runner file is read without a look at the engines, which stand above it; their names are checked here,
before anything is made of one. Everything that can be wrong between a runner and a search space is found when the
driver is made, before anything is written or started. Whoever runs candidates asks here and knows no driver by name. A
driver is imported where it is chosen: a simulation needs none of what reads real servers.

The pool follows from the runner and is never guessed twice. A server that is started on this machine has all of it, so
one candidate runs at a time and in this process; one that spans machines reserves them as a group of a Ray cluster;
commands and a site's own classes run as many at once as the runner says, for what they start is elsewhere.
"""

from __future__ import annotations

from partitune.engines.registry import ENGINES
from partitune.errors import SpecError, did_you_mean
from partitune.execution.driver import Driver
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool
from partitune.execution.pools.warming import WarmingPool
from partitune.execution.ray.address import named_cluster
from partitune.execution.server.load_generators import LOAD_GENERATORS
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.spec.yaml.faults import describe


def choose_driver(problem: Problem, space: SearchSpace, runner: Runner) -> Driver:
    """The driver of `runner` for this problem.

    Raises:
        SpecError: the two do not fit, or the site's own class cannot be loaded.
    """
    check_runner(runner)
    if problem.placement.node_count > runner.max_nodes:
        text = f"found {runner.max_nodes}, and {space.name} stands on {problem.placement.node_count} nodes; "
        raise runner.error("max_nodes", text=f"{text}allowed: a search space on at most {runner.max_nodes}")
    if runner.driver == "simulator":
        from partitune.execution.simulator_driver import SimulatorDriver

        return SimulatorDriver(problem)
    if runner.site_driver is not None:
        from partitune.execution.site import SiteDriver

        return SiteDriver(problem, runner)
    from partitune.execution.command import CommandDriver
    from partitune.execution.processes.node import LocalNodes
    from partitune.execution.ray.actors import RayNodes
    from partitune.execution.server.server_driver import ServerDriver
    from partitune.execution.server.setup_checks import setup_for

    setup = setup_for(problem, space, runner)
    if runner.driver == "command":
        return CommandDriver(setup, LocalNodes())
    return ServerDriver(setup, RayNodes(setup.reservation.gpus) if runner.nodes.start == "ray" else LocalNodes())


def choose_pool(driver: Driver, runner: Runner, wanted: str, ray_address: str | None) -> Pool:
    """The pool for `driver`, not yet entered.

    Args:
        driver: of `choose_driver`.
        runner: that it was made for.
        wanted: `ray` or `local`, as the command line says.
        ray_address: of a running cluster, as `named_cluster` takes it.

    Raises:
        SpecError: what was asked for cannot be.
        ClusterError: the cluster does not answer.
    """
    slots = None if runner.workers == "auto" else runner.workers
    if driver.group is not None:
        if wanted == "local":
            raise SpecError(f"--pool: found local, and runner {runner.name} starts nodes of Ray; allowed: ray")
        address, named_by = named_cluster(ray_address)
        return RayPool(driver, address, slots, group=driver.group, named_by=named_by)
    if runner.starts_server and ray_address is not None:
        raise SpecError(
            f"--ray-address: found beside runner {runner.name}, which starts the engine on this machine; allowed: "
            "a runner with nodes.start: ray"
        )
    if runner.starts_server or wanted == "local":
        return LocalPool(driver)
    if runner.driver != "simulator":
        slots = slots or 1
        if slots == 1 and ray_address is None:
            return LocalPool(driver)
    address, named_by = named_cluster(ray_address)
    if address is None and runner.driver == "simulator":
        return WarmingPool(driver, slots)
    return RayPool(driver, address, slots, named_by=named_by)


def check_runner(runner: Runner) -> None:
    """Raise SpecError, with the file's line, for a name that is no engine's."""
    drivers = ("simulator", *ENGINES, "command")
    if runner.starts_server and runner.driver not in ENGINES:
        hint = did_you_mean(runner.driver, drivers)
        text = f"found {describe(runner.driver)}{hint}; allowed: {', '.join(drivers)}, or FILE.py:Class"
        raise runner.error("driver", text=text)
    tool = runner.benchmark.tool
    if tool not in LOAD_GENERATORS:
        *names, last = (
            name if name == generator.title else f"{name} ({generator.title})"
            for name, generator in LOAD_GENERATORS.items()
        )
        hint = did_you_mean(tool, LOAD_GENERATORS)
        text = f"found {describe(tool)}{hint}; allowed: {', '.join(names)} or {last}"
        raise runner.error("benchmark", "tool", text=text)
    if runner.starts_server and not runner.layer_report and ENGINES[runner.driver].launch.layer_report is None:
        able = ", ".join(name for name, engine in ENGINES.items() if engine.launch.layer_report)
        text = f"found beside driver {runner.driver}, which does not use it; allowed with: {able}, site"
        raise runner.error("layer_report", text=text)
