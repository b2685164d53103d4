"""What is asked of a server over HTTP before and while it is measured.

Decision: small questions in the words that engines share (OpenAI's, /health and /metrics), with a time limit each,
straight to the address (a proxy of the environment would answer in the server's place). No answer is None where the
server may still be starting, and an error where it must not be: after it said that it is healthy. A health check
proves of no engine that a request is answered.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from partitune.engines.launch import LayerReport
from partitune.errors import Unhealthy
from partitune.execution.processes.masking import mask

#: Seconds for a question that a living server answers at once.
_SHORT_S = 10.0
_LARGEST_ANSWER = 16 << 20
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
#: Greedy, and short enough that no flag of a scheduler cuts it into more than one step.
REFERENCE_PROMPT = "The capital of France is Paris. The capital of Italy is"
REFERENCE_TOKENS = 16


@dataclass(frozen=True, slots=True)
class WorkerLayers:
    """The layers one worker holds, by its own word: [first, end)."""

    stage: int
    first: int
    end: int
    weight_bytes: int  # 0: not known


def is_healthy(url: str) -> bool:
    """True when `/health` says 200; False also while nothing listens."""
    try:
        _ask(f"{url}/health", None, _SHORT_S)
    except Unhealthy:
        return False
    return True


def served_names(url: str, key: str = "") -> tuple[str, ...]:
    """Names in `/v1/models`. Raises Unhealthy."""
    rows = _json(f"{url}/v1/models", None, _SHORT_S, key).get("data")
    return tuple(str(row.get("id")) for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict))


def complete(url: str, name: str, timeout_s: float, key: str = "") -> str:
    """The text of one greedy request.

    Raises:
        Unhealthy: no answer in time, an error, or no text in the answer.
    """
    asked = {
        "model": name, "prompt": REFERENCE_PROMPT, "max_tokens": REFERENCE_TOKENS, "temperature": 0,
        "ignore_eos": True, "stream": False,
    }  # fmt: skip
    answer = _json(f"{url}/v1/completions", asked, timeout_s, key)
    choices = answer.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict) and choices[0].get("text"):
        return str(choices[0]["text"])
    raise Unhealthy(f"{url}/v1/completions answered without a text: {json.dumps(answer)[:300]}")


def worker_layers(url: str, report: LayerReport, timeout_s: float, key: str = "") -> tuple[WorkerLayers, ...]:
    """What every worker says it holds. Raises Unhealthy."""
    where = f"{url}{report.path}"
    answer = _json(where, report.question, timeout_s, key)
    rows = answer.get("results")
    try:
        return tuple(_worker(row) for row in (rows if isinstance(rows, list) else [{}]))
    except (KeyError, TypeError, ValueError) as error:
        raise Unhealthy(f"{where}: no report of a worker's layers: {json.dumps(answer)[:300]}") from error


def _worker(row: Mapping[str, Any]) -> WorkerLayers:
    first, end = int(row["first_layer"]), int(row["end_layer"])
    return WorkerLayers(int(row["pp_rank"]), first, end, int(row["weight_bytes"] or 0))


def server_config(url: str, report: LayerReport, key: str = "") -> dict[str, object]:
    """The configuration of a server whose workers can be asked. Raises Unhealthy."""
    return _json(f"{url}{report.config_path}", None, _SHORT_S, key)


def metrics_page(url: str) -> str:
    """`/metrics` as it stands. Raises Unhealthy."""
    return _ask(f"{url}/metrics", None, _SHORT_S)


def _json(url: str, body: Mapping[str, object] | None, timeout_s: float, key: str) -> dict[str, object]:
    text = _ask(url, body, timeout_s, key)
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Unhealthy(f"{url} answered {text[:200]!r}, which is no JSON") from error
    if not isinstance(answer, dict):
        raise Unhealthy(f"{url} answered {text[:200]!r}; looked for a JSON object")
    return answer


def _ask(url: str, body: Mapping[str, object] | None, timeout_s: float, key: str = "") -> str:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
    request = urllib.request.Request(url, data, headers)  # noqa: S310 - our own http URL
    try:
        with _DIRECT.open(request, timeout=timeout_s) as answer:
            return mask(bytes(answer.read(_LARGEST_ANSWER)).decode(errors="replace"))
    except urllib.error.HTTPError as error:
        with error:
            words = mask(error.read(_LARGEST_ANSWER).decode(errors="replace"))[:300]
        raise Unhealthy(f"{url} answered {error.code}: {words}") from error
    except (OSError, HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(reason, TimeoutError):
            raise Unhealthy(f"{url} did not answer in {timeout_s:g} s") from error
        raise Unhealthy(f"{url} cannot be asked: {reason}") from error
