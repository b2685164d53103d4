"""Fixtures: one Ray cluster for the session, and nothing a test does reaches the user's own folders.

`make test` runs two processes of tests side by side. What needs a Ray cluster, and what looks for processes of one name
on the whole machine, is one group: its tests come one after the other, and first, as it is the largest.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

#: `--hypothesis-profile=full` draws fresh inputs, as many as a release wants; the default is short and always the same.
_FIXTURES_ARE_SHARED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
settings.register_profile(
    "short", max_examples=30, deadline=None, derandomize=True, suppress_health_check=_FIXTURES_ARE_SHARED
)
settings.register_profile("full", settings.get_profile("short"), max_examples=2000, derandomize=False)
settings.load_profile("short")

# A run in the background begins with Ctrl-C ignored, and so would every program a test starts and interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before Ray is imported anywhere: no usage report, no token file in the home of whoever runs the tests.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"


# Logs and the ledger of engines that a test starts, and what `gc` would throw away.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "alone")
os.environ["XDG_STATE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "state" / _WORKER)

# Answers of the kernel tables are kept beside pytest's own cache: asking takes seconds a model.
os.environ["XDG_CACHE_HOME"] = str(Path(__file__).parent.parent / ".pytest_cache" / "answers")


class _FilesInOrder(LoadScopeScheduling):
    """A file of tests goes to one process; files that share the machine go to one process together."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return "machine" if _shares_machine(file) else file


@cache
def _shares_machine(file: str) -> bool:
    text = (Path(__file__).parent.parent / file).read_text()
    return re.search(r"mark\.ray|mark\.machine|ray_cluster", text) is not None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    """In place of xdist's own groups, which pytest 9.2 does not see."""
    return _FilesInOrder(config, log)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray of two CPUs, started once."""
    import ray

    here = str(Path(__file__).parent.parent)
    ray.init(
        "local",  # whatever else runs on the machine
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=100_000_000,
        runtime_env={"env_vars": {"PYTHONPATH": here}},  # workers import the scripted driver of the tests
    )
    yield
    ray.shutdown()
