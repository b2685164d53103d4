"""The connection to a Ray cluster: made, checked, and noticed when it is lost.

Decision: Ray ends the whole process some ten seconds after the node it talks through died (a minute after the head),
and tells nobody before. So its pulse is felt here: both accept connections while they live. Whoever hears in time can
disconnect and connect again in the same process (tried with Ray 2.60). Where Ray's processes die while it connects, it
never returns; so it connects in a thread of its own, and there is a limit.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from partitune.errors import ClusterError
from partitune.execution.ray.address import TOKEN_HINT, reach
from partitune.execution.ray.own_session import OwnSession, forget_token
from partitune.execution.ray.sigterm import own_sigterm

#: Seconds that Ray may take to start and connect; ten are usual.
START_LIMIT_S = 120.0
#: Seconds for which SIGTERM may be Ray's while it starts.
_SIGTERM_S = 0.02
#: Seconds between two looks whether the head lives that is starting.
_HEAD_S = 0.5


class RayCluster:
    """One cluster: the named one, or one of its own on this machine."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._owned = False
        self._session: OwnSession | None = None
        self._vital: dict[str, str] = {}
        self._over = threading.Event()
        self._unwanted = threading.Event()
        self._thread: threading.Thread | None = None
        self.stuck = False  # Ray never came back from connecting: this process can use it no more

    def start(self) -> None:
        """Connect, or start one on this machine. Raises ClusterError."""
        # Ray reads these on import: no usage ping, and an engine sees the GPUs though a worker asked for none.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        if self._unwanted.is_set():
            raise self._unusable(InterruptedError("nobody wants it any more"))
        if self._address is not None:
            reach(self._address)
        elif not ray.is_initialized():
            self._session = OwnSession()
        connected, failures = threading.Event(), list[Exception]()
        self._over = threading.Event()
        arguments = (connected, failures, self._over)
        self._thread = threading.Thread(target=self._connect, args=arguments, name="ray", daemon=True)
        with own_sigterm() as put_back:
            self._thread.start()
            hindrance = self._hindrance(connected, put_back)
        if hindrance:
            self.stuck = True
            atexit.unregister(ray.shutdown)  # it would wait for the same lock
            if self._session is not None:
                self._session.end()
            raise self._unusable(TimeoutError(hindrance))
        if failures:
            self.stop()
            raise self._unusable(failures[0]) from failures[0]

    def _hindrance(self, connected: threading.Event, meanwhile: Callable[[], None]) -> str:
        """Wait until it is connected or has failed; why it never will be, else empty."""
        start = time.monotonic()
        had_head, next_look = False, start
        while not connected.wait(_SIGTERM_S):
            meanwhile()
            now = time.monotonic()
            if now > start + START_LIMIT_S:
                return f"Ray did not answer in {START_LIMIT_S:g} s"
            if self._session is not None and now > next_look:  # a signal to the whole group ends it as well
                has_head, next_look = self._session.has_head(), now + _HEAD_S
                if had_head and not has_head:
                    return "its head ended while Ray started"
                had_head = has_head
        return ""

    def _connect(self, connected: threading.Event, failures: list[Exception], over: threading.Event) -> None:
        import ray

        try:
            if not ray.is_initialized():
                self._init()
                self._owned = True
            self._vital = _vital(self._address)
            if self._session is not None:
                self._session.check(self._vital.values())
        except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception where a node does not come up
            failures.append(error)
            if self._session is not None:
                ray.shutdown()
        finally:
            connected.set()
        if not failures:
            over.wait()  # Ray asks Linux to kill its processes when the thread that started them ends

    def _init(self) -> None:
        import ray

        quiet: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.ERROR}
        if self._session is None:
            ray.init(self._address, **quiet)
            return
        with self._session.entered():
            # Without the setting, a worker that dies while we connect is waited for, for ever and with the GIL held.
            setting = {"prestart_worker_first_driver": False}
            ray.init("local", _temp_dir=self._session.rays_folder, _system_config=setting, **quiet)

    def cancel(self) -> None:
        """From another thread: `start` raises if nothing is started yet; loading Ray alone takes seconds."""
        self._unwanted.set()

    def cpus(self) -> int:
        """CPUs of all nodes, at least 1."""
        import ray

        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        return max(1, int(resources.get("CPU", 1)))

    def loss(self) -> str:
        """Why nothing can run there any more; empty while the head and the node of this process live."""
        for what, address in self._vital.items():
            try:
                reach(address)
            except ClusterError:
                return f"{what} at {address} does not answer"
        return ""

    def stop(self, *, lost: bool = False) -> None:
        """Disconnect; ends a cluster of its own. One that was there before us is left to whoever made it, or lost."""
        import ray

        if (self._owned or lost) and not self.stuck:
            ray.shutdown()
        self._owned = False
        self._over.set()
        if self._thread is not None and not self.stuck:
            self._thread.join()
            if self._session is not None:
                forget_token()
                self._session.end()
                self._session = None

    def _unusable(self, error: Exception) -> ClusterError:
        if self._address is None:
            return ClusterError(f"Ray on this machine cannot be used: {error}\nRun without Ray: --pool local")
        hint = f"\nIt may ask for its token. {TOKEN_HINT}" if isinstance(error, ConnectionError) else ""
        return ClusterError(f"Ray at {self._address} cannot be used: {error}{hint}")


def _vital(address: str | None) -> dict[str, str]:
    """What has to live for this process to use Ray, and where it listens."""
    import ray

    if address is not None and address.startswith("ray://"):
        return {"the Ray client server": address}
    context = ray.get_runtime_context()
    nodes: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    own = next(node for node in nodes if node["NodeID"] == context.get_node_id())
    return {
        "the head of the Ray cluster": context.gcs_address,
        "the Ray node of this search": f"{own['NodeManagerAddress']}:{own['NodeManagerPort']}",
    }
