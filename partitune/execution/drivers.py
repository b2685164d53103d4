"""Which driver a runner means.

Decision: everything that can be wrong between a runner and a search space is found when the driver is made, before
anything is written or started. Whoever runs candidates asks here and knows no driver by name. A driver is imported
where it is chosen: a simulation needs none of what reads real servers.
"""

from __future__ import annotations

from partitune.execution.driver import Driver
from partitune.execution.runner_checks import check_runner
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace


def choose_driver(problem: Problem, space: SearchSpace, runner: Runner) -> Driver:
    """The driver of `runner` for this problem.

    Raises:
        SpecError: the two do not fit, or the site's own class cannot be loaded.
    """
    check_runner(runner)
    if runner.driver == "simulator":
        from partitune.execution.simulator_driver import SimulatorDriver

        return SimulatorDriver(problem)
    if runner.site_driver is not None:
        from partitune.execution.site import SiteDriver

        return SiteDriver(problem, runner)
    from partitune.execution.command import CommandDriver
    from partitune.execution.processes.node import LocalNodes
    from partitune.execution.ray.nodes import RayNodes
    from partitune.execution.server.server_driver import ServerDriver
    from partitune.execution.server.setup_checks import setup_for

    setup = setup_for(problem, space, runner)
    if runner.driver == "command":
        return CommandDriver(setup, LocalNodes())
    return ServerDriver(setup, RayNodes(setup.reservation.gpus) if runner.nodes.start == "ray" else LocalNodes())
