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
import socket
import threading
from typing import Any

from partitune.errors import ClusterError

#: Seconds a head has to accept a connection.
CONNECT_TIMEOUT_S = 5.0
#: Seconds that Ray may take to start and connect; ten are usual.
START_LIMIT_S = 120.0


class RayCluster:
    """One cluster: the named one, or one of its own on this machine."""

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._owned = False
        self._vital: dict[str, str] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self.stuck = False  # Ray never came back from connecting: this process can use it no more

    def start(self) -> None:
        """Connect, or start one on this machine. Raises ClusterError."""
        # Ray reads these on import: no usage ping, no token file written into the user's home for a private cluster.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        if self._address is None:
            os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        reach(self._address)
        connected, failures = threading.Event(), list[Exception]()
        self._over = threading.Event()
        arguments = (connected, failures, self._over)
        self._thread = threading.Thread(target=self._connect, args=arguments, name="ray", daemon=True)
        self._thread.start()
        if not connected.wait(START_LIMIT_S):
            self.stuck = True
            atexit.unregister(ray.shutdown)  # it would wait for the same lock
            raise _unusable(self._address, TimeoutError(f"Ray did not answer in {START_LIMIT_S:g} s"))
        if failures:
            raise _unusable(self._address, failures[0]) from failures[0]

    def _connect(self, connected: threading.Event, failures: list[Exception], over: threading.Event) -> None:
        import ray

        try:
            if not ray.is_initialized():
                # Without this, a worker that dies while we connect is waited for, for ever and with the GIL held. Only
                # a cluster of our own can be told: Ray refuses it beside an address, which RAY_ADDRESS is as well.
                ours = self._address is None and "RAY_ADDRESS" not in os.environ
                ray.init(
                    address=self._address,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _system_config={"prestart_worker_first_driver": False} if ours else None,
                )
                self._owned = True
            self._vital = _vital(self._address)
        except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception where a node does not come up
            failures.append(error)
        finally:
            connected.set()
        if not failures:
            over.wait()  # Ray asks Linux to kill its processes when the thread that started them ends

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


def reach(address: str | None) -> None:
    """Raise ClusterError where nothing listens at `address`, in seconds; Ray itself tries for minutes."""
    if address is None or address in ("auto", "local"):
        return
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if "://" in host:
            raise ValueError("not the address of a Ray cluster; that of the dashboard is for `partitune submit`")
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r} is not an address")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise _unusable(address, error) from error


def _unusable(address: str | None, error: Exception) -> ClusterError:
    return ClusterError(
        f"Ray at {'this machine' if address is None else address} cannot be used: {error}\n"
        "Check the address (HOST:PORT of the head, such as 10.0.0.1:6379, or `auto`), or run without Ray: --pool local"
    )
