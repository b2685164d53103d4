"""The simulator's whole path on a machine without what is Linux's own: /proc, prctl, some constants of fcntl."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.store.test_processes import REPOSITORY

#: Runs commands of ours as on macOS, up to one that fails. What others built for this machine is loaded before.
ELSEWHERE = """
import sysconfig; sysconfig.get_config_vars()
import aiohttp, numpy, optuna, psutil, pydantic, rich.console, scipy.stats, sqlalchemy.dialects.sqlite
import ctypes, errno, fcntl, os, sys
sys.platform = "darwin"
COMMON = "F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_GETFL F_GETLK F_GETOWN F_RDLCK F_SETFD F_SETFL F_SETLK F_SETLKW F_SETOWN"
COMMON += " F_UNLCK F_WRLCK FD_CLOEXEC LOCK_EX LOCK_NB LOCK_SH LOCK_UN"
for name in [name for name in vars(fcntl) if name.isupper() and name not in COMMON.split()]:
    delattr(fcntl, name)
for name in ("pidfd_open", "memfd_create", "sched_getaffinity", "setns", "unshare", "eventfd", "splice"):
    if hasattr(os, name):
        delattr(os, name)
def hide(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        ours = not sys._getframe(1).f_globals["__name__"].startswith("psutil")  # it has another way there
        if ours and os.fsdecode(arguments[0]).startswith(("/proc", "/sys/")):
            raise FileNotFoundError(errno.ENOENT, "nothing like it here", os.fsdecode(arguments[0]))
    if event == "ctypes.dlsym" and arguments[1] == "prctl":
        raise AttributeError("prctl")
sys.addaudithook(hide)
from partitune.cli import main
for typed in sys.argv[1:]:
    if code := main(typed.split()):
        sys.exit(f"{typed}: {code}")
"""


#: Everything that simulates, and all that reads what it found.
COMMANDS = (
    *("search tiny --pool local --trials 3", "search --resume tiny --pool local --trials 4", "status", "studies"),
    *("explain tiny --trace trace.json", "solve tiny", "layouts qwen3-235b-8xh100-layouts", "list", "show"),
    *("show --distance", "pareto", "export -o deploy.env", "gc", "schema search-space"),
)


def elsewhere(folder: Path, *commands: str) -> str:
    """What is said on stderr."""
    command = [sys.executable, "-c", ELSEWHERE, *commands]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr


def test_the_simulators_path_needs_nothing_of_linux(tmp_path: Path) -> None:
    said = elsewhere(tmp_path, *COMMANDS, "explain none-of-these")
    assert said.endswith("explain none-of-these: 2\n")  # and all before it did what they should
    assert (tmp_path / "deploy.env").exists()
    assert (tmp_path / "trace.json").exists()


def test_what_starts_an_engine_says_that_it_needs_linux(tmp_path: Path) -> None:
    said = elsewhere(tmp_path, "launch tiny --runner vllm-local")
    assert "engines are started on Linux only: elsewhere nothing can prove that one has ended" in said
