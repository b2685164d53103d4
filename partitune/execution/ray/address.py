"""Which Ray cluster is meant, and whether anything answers there.

Decision: settled once, before anything is written or started, and kept with who named it, so that it can be said.
RAY_ADDRESS names a cluster as `--ray-address` does, where Ray is used at all; `local` is a cluster of the search's own
whatever the variable says. A cluster that is named and dead is an error at once, and never replaced by another one.
"""

from __future__ import annotations

import os
import socket

from partitune.errors import ClusterError

#: Seconds a head has to accept a connection.
CONNECT_TIMEOUT_S = 5.0
#: What a cluster that refuses us may want.
TOKEN_HINT = "Set RAY_AUTH_MODE=token, and the token in RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token"  # noqa: S105 - where one stands, none itself
_VARIABLE = "RAY_ADDRESS"
_OTHERWISE = ", start a cluster of its own (--ray-address local), or run without Ray: --pool local"


def named_cluster(given: str | None) -> tuple[str | None, str]:
    """The cluster to use, which answers.

    Args:
        given: HOST:PORT, ray://HOST:PORT, `auto` (the one that runs here), `local`, or None where nobody said.

    Returns:
        Its address, None for one of the search's own; and who named it.

    Raises:
        ClusterError: nothing answers there, or with `auto` none runs here.
    """
    address, named_by = given, "--ray-address"
    if given in (None, "auto") and os.environ.get(_VARIABLE):
        address, named_by = os.environ[_VARIABLE], _VARIABLE
    if address in (None, "local"):
        return None, named_by
    if address == "auto":
        from ray._private.utils import read_ray_address

        address = read_ray_address()
        if address is None:
            raise _unusable("auto", ConnectionError("no `ray start` left an address on this machine"), _OTHERWISE)
    reach(address, _OTHERWISE if named_by != _VARIABLE else f"{_OTHERWISE}. RAY_ADDRESS named it")
    return address, named_by


def reach(address: str, otherwise: str = "") -> None:
    """Raise ClusterError where nothing listens at `address`, in seconds; Ray itself tries for minutes.

    Args:
        address: HOST:PORT or ray://HOST:PORT.
        otherwise: how the advice goes on after checking the address.
    """
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    try:
        if "://" in host:
            raise ValueError("not the address of a Ray cluster; that of the dashboard is for `partitune submit`")
        if not (colon and host and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"{address!r} is not an address")
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except (OSError, ValueError) as error:
        raise _unusable(address, error, otherwise) from error


def _unusable(address: str, error: Exception, otherwise: str) -> ClusterError:
    return ClusterError(
        f"Ray at {address} cannot be used: {error}\n"
        f"Check the address (HOST:PORT of the head, such as 10.0.0.1:6379, or `auto`){otherwise}"
    )
