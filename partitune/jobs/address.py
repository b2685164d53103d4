"""The address of a head: what it may look like, and whether a Ray answers there.

Decision: asked before Ray's own client is, which has no time limit and takes any HTTP server for a head.
"""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from contextlib import suppress
from urllib.parse import urlsplit

from partitune.errors import ClusterError

#: Seconds in which a head has to answer.
ANSWER_S = 10.0
#: Where a dashboard listens unless it was told otherwise.
DASHBOARD_PORT = 8265


def checked(address: str) -> str:
    """The address with its scheme; a bare HOST means Ray's own port there. Raises ClusterError."""
    whole = address if "://" in address else f"http://{address}"
    with suppress(ValueError):
        if urlsplit(whole).port is None and "://" not in address:
            whole = f"{whole.rstrip('/')}:{DASHBOARD_PORT}"
        parts = urlsplit(whole)
        if parts.scheme in ("http", "https") and parts.hostname and parts.path in ("", "/") and parts.port != 0:
            return whole.rstrip("/")
    raise ClusterError(
        f"--address {address!r}: allowed: the head's dashboard, such as http://HOST:8265 "
        "(not ray://, and not the port that workers join)"
    )


def knock(address: str) -> None:
    """Fail in seconds where no Ray answers; Ray's client has no time limit. Raises ClusterError."""
    try:
        with urllib.request.urlopen(f"{address}/api/version", timeout=ANSWER_S) as answer:  # noqa: S310 - http(s) only
            version = json.loads(answer.read(1 << 16))["ray_version"]
        if not isinstance(version, str):
            raise TypeError
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return  # Ray, and its client knows about tokens
        raise ClusterError(f"{address}: no Ray head answers there (HTTP {error.code} for /api/version)") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise ClusterError(
            f"{address}: cannot be reached: {getattr(reason, 'strerror', None) or reason}. "
            "Check the address, that the head runs with its dashboard, and that the port is open from here"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{address}: something answers there, but it is no Ray head") from error
