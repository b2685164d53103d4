"""A Ray of the search's own: for this machine alone, behind a token, in a folder that goes with it.

Decision: Ray by itself listens on every interface, and leaves its token in the user's home and its files in a folder
shared by all. Ours listens on the loopback and asks for a random token, which stands in the environment of Ray's own
processes and nowhere else: whoever measures takes it out before anything else is started (`leave_session`). There is no
public way to ask Ray for the loopback, so what came of it is looked at before the cluster is used.

Its folder is locked while the search lives and removed when it ends. The marker in the environment of everything born
of the session says what still lives of one whose search was killed; when nothing does, `partitune gc` removes it.

Source: ray 2.56.0 and 2.60.0, `_private/services.py` (get_node_ip_address), `_private/authentication`.
"""

from __future__ import annotations

import fcntl
import importlib
import ipaddress
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from partitune.errors import ClusterError
from partitune.execution.processes.ledger import within

PREFIX = "partitune-ray-"
#: In the environment of every process of a session, and of their children: its folder.
MARKER = "PARTITUNE_RAY_SESSION"
#: In the environment of Ray's own processes: as JSON, what stands outside in place of the variables below.
_OUTSIDE = "PARTITUNE_RAY_OUTSIDE"
_AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
#: Characters that the path of the folder may have: those of a Unix socket without what Ray puts behind it.
_LONGEST = 107 - len("/ray/session_2026-12-01_00-55-28_193181_4194304/sockets/plasma_store")
#: Seconds that the last of Ray's processes may go on writing into the folder.
_REMOVAL_S = 5.0


class OwnSession:
    """One start of a cluster of our own: its folder, and its variables."""

    def __init__(self) -> None:
        base = next(base for base in _bases() if len(f"{base}/{PREFIX}") + 8 <= _LONGEST or base == Path("/tmp"))  # noqa: S108 - mkdtemp
        self.folder = tempfile.mkdtemp(prefix=PREFIX, dir=base)
        self.rays_folder = f"{self.folder}/ray"  # which Ray opens to everybody
        self._lock = _locked(self.folder)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Whatever of Ray is started in here belongs to the session."""
        from ray._private import ray_constants

        outside = {name: os.environ.get(name) for name in _AUTHENTICATION}
        reachable = ray_constants.ENABLE_RAY_CLUSTER  # else a node is on the loopback, as Ray does on macOS
        _set({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_AUTH_TOKEN_PATH": None})
        _set({MARKER: self.folder, _OUTSIDE: json.dumps(outside)})
        ray_constants.ENABLE_RAY_CLUSTER = False
        _read_authentication()
        try:
            yield
        finally:
            ray_constants.ENABLE_RAY_CLUSTER = reachable
            _set({**outside, MARKER: None, _OUTSIDE: None})

    def check(self, addresses: Iterable[str]) -> None:
        """Raise ClusterError where an address (HOST:PORT) is not of the loopback, or no token is asked for."""
        from ray._private.authentication.authentication_utils import is_token_auth_enabled

        hosts = [address.rpartition(":")[0].strip("[]") for address in addresses]
        if open_to_all := [host for host in hosts if not ipaddress.ip_address(host).is_loopback]:
            raise ClusterError(f"it would listen on {', '.join(open_to_all)}, where others can reach it")
        if not is_token_auth_enabled():
            raise ClusterError("it asks for no token")

    def has_head(self) -> bool:
        """Its first process runs, without which Ray waits for minutes and then ends ours."""
        return any(process.name() == "gcs_server" for process in self._processes())

    def end(self) -> None:
        """End what of Ray still runs, and remove the folder; what cannot go now is for `partitune gc`."""

        def is_gone() -> bool:
            for process in self._processes():
                with suppress(psutil.Error):
                    process.kill()
            shutil.rmtree(self.folder, ignore_errors=True)
            return not Path(self.folder).exists()

        within(_REMOVAL_S, is_gone)
        os.close(self._lock)

    def _processes(self) -> Iterator[psutil.Process]:
        """Ray's own; what a worker started is not among them, and ends with it."""
        for process, variables in _marked():
            if variables[MARKER] == self.folder and _OUTSIDE in variables:
                yield process


def forget_token() -> None:
    """Once Ray is down: what it does next in this process goes by the user's own variables again."""
    _read_authentication()


def leave_session() -> None:
    """Before a worker starts anything: give the environment back what stood there outside of a session of ours."""
    outside = os.environ.pop(_OUTSIDE, None)
    if outside is not None:  # else somebody named the cluster, and its authentication stays
        _set(json.loads(outside))


def abandoned_sessions() -> tuple[Path, ...]:
    """Folders of this user's sessions on this machine of which nothing lives."""
    living, abandoned = {variables[MARKER] for _, variables in _marked()}, []
    for folder in sorted(folder for base in set(_bases()) for folder in base.glob(f"{PREFIX}*")):
        with suppress(OSError):  # locked, gone, or no folder
            if str(folder) not in living and folder.lstat().st_uid == os.getuid():
                os.close(_locked(folder))
                abandoned.append(folder)
    return tuple(abandoned)


def _bases() -> tuple[Path, ...]:
    """Where a session may stand, best first."""
    return tuple(Path(base) for base in (os.environ.get("RAY_TMPDIR"), tempfile.gettempdir(), "/tmp") if base)  # noqa: S108 - mkdtemp


def _locked(folder: str | Path) -> int:
    """A descriptor that holds the lock on a folder. Raises OSError: somebody else does, or it is a link."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _marked() -> Iterator[tuple[psutil.Process, Mapping[str, str]]]:
    """Living processes of any session, and their variables."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # gone, or another user's
            if MARKER in (variables := process.environ()):
                yield process, variables


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _read_authentication() -> None:
    """Let Ray's code in this process read the variables, which it does once by itself."""
    raylet: Any = importlib.import_module("ray._raylet")  # compiled
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
