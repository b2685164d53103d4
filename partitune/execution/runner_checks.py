"""Whether the driver and the load generator that a runner names are there.

Decision: a runner file is read without a look at the engines, which stand above it; this is asked before anything is
made of one.
"""

from __future__ import annotations

from partitune.engines.registry import ENGINES
from partitune.errors import did_you_mean
from partitune.execution.server.load_generators import LOAD_GENERATORS
from partitune.spec.runner import Runner
from partitune.spec.yaml.faults import describe


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
