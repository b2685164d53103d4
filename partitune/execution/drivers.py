"""Which driver a runner means, and what one candidate takes of a cluster.

Decision: everything that can be wrong between a runner and a search space is found when the driver is made, before
anything is written or started. Whoever runs candidates asks here and knows no driver by name.
"""

from __future__ import annotations

from partitune.execution.command import CommandDriver
from partitune.execution.driver import Driver
from partitune.execution.processes.node import LocalNodes
from partitune.execution.ray.groups import RayGroup
from partitune.execution.ray.nodes import RayNodes
from partitune.execution.server.server_driver import ServerDriver
from partitune.execution.server.setup_checks import setup_for
from partitune.execution.simulator_driver import SimulatorDriver
from partitune.execution.site import SiteDriver
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace


def choose_driver(problem: Problem, space: SearchSpace, runner: Runner) -> Driver:
    """The driver of `runner` for this problem.

    Raises:
        SpecError: the two do not fit, or the site's own class cannot be loaded.
    """
    if runner.driver == "simulator":
        return SimulatorDriver(problem)
    if runner.site_driver is not None:
        return SiteDriver(problem, runner)
    setup = setup_for(problem, space, runner)
    if runner.driver == "command":
        return CommandDriver(setup, LocalNodes())
    if runner.nodes.start == "ray":
        return ServerDriver(setup, RayNodes(setup.reservation.gpus))
    return ServerDriver(setup, LocalNodes())


def group_of(driver: Driver) -> RayGroup | None:
    """What each candidate reserves of a Ray cluster; None where it is measured on this machine."""
    if not isinstance(driver, ServerDriver) or driver.setup.runner.nodes.start != "ray":
        return None
    reserved = driver.setup.reservation
    return RayGroup(reserved.nodes, reserved.gpus, driver.setup.runner.nodes.hosts)
