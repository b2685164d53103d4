"""The job client where no Ray is: unreachable heads, strangers, and a head that is still starting."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from partitune.errors import ClusterError
from partitune.jobs import address, client
from partitune.jobs.address import checked
from partitune.jobs.client import JobServer
from partitune.jobs.package import pack
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace

VERSION = {"version": "4", "ray_version": "2.60.0", "ray_commit": "", "session_name": ""}
DETAILS = {"type": "SUBMISSION", "submission_id": "partitune-tiny-1", "status": "RUNNING", "entrypoint": "x"}


class Stranger(BaseHTTPRequestHandler):
    """Answers what its server's `answers` say: (method, path start) -> a list of (status, body), the last for ever."""

    def answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answers: dict[tuple[str, str], list[tuple[int, Any]]] = self.server.answers  # type: ignore[attr-defined]
        for (method, start), replies in answers.items():
            if method == self.command and self.path.startswith(start):
                status, body = replies.pop(0) if len(replies) > 1 else replies[0]
                content = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                return
        self.send_error(404)

    do_GET = do_POST = do_PUT = answer  # noqa: N815 - http.server's names

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def stranger(answers: dict[tuple[str, str], list[tuple[int, Any]]]) -> Iterator[str]:
    """The address of a server with these answers."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        server.answers = answers  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def head_that(*answers: tuple[str, str, int, Any]) -> dict[tuple[str, str], list[tuple[int, Any]]]:
    found: dict[tuple[str, str], list[tuple[int, Any]]] = {("GET", "/api/version"): [(200, VERSION)]}
    for method, path, status, body in answers:
        found.setdefault((method, path), []).append((status, body))
    return found


@pytest.mark.parametrize(
    "address",
    ["", "ray://h:10001", "auto", "http://", "h:0", "h:99999", "http://h:8265/jobs", "file:///x", "http://[::1"],
)
def test_an_address_that_is_none_is_refused_with_an_example(address: str) -> None:
    with pytest.raises(ClusterError, match="http://HOST:8265"):
        JobServer(address if address != "auto" else "auto://x")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("head", "http://head:8265"),
        ("head:9000/", "http://head:9000"),
        ("http://head", "http://head"),
        ("https://ray.example/", "https://ray.example"),
        ("[::1]", "http://[::1]:8265"),
    ],
)
def test_a_bare_host_means_the_port_of_the_dashboard(typed: str, meant: str) -> None:
    assert checked(typed) == meant


def test_a_closed_port_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"http://{address}: cannot be reached: Connection refused. Check"):
            JobServer(address)


def test_a_head_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        with pytest.raises(ClusterError, match="cannot be reached: timed out"):
            JobServer(f"127.0.0.1:{silent.getsockname()[1]}")
        assert time.monotonic() - start < 20


@pytest.mark.parametrize(
    ("status", "body"), [(200, "<html>hello"), (200, []), (200, {}), (200, {"ray_version": 5}), (404, ""), (500, "")]
)
def test_a_stranger_is_no_head(status: int, body: object) -> None:
    with (
        stranger({("GET", "/api/version"): [(status, body)]}) as address,
        pytest.raises(ClusterError, match="no Ray head"),
    ):
        JobServer(address)


@pytest.mark.parametrize(
    ("status", "body"), [(200, "<html>"), (200, [1]), (200, [{"status": "?"}]), (500, "Traceback\nOops: x")]
)
def test_a_nonsense_answer_is_one_error(status: int, body: object) -> None:
    with (
        stranger(head_that(("GET", "/api/jobs/", status, body))) as address,
        pytest.raises(ClusterError, match=f"Ray at {address}: "),
    ):
        JobServer(address).jobs()


@pytest.mark.parametrize("status", [401, 403])
def test_a_head_that_wants_a_token_gets_a_hint_of_two_lines(status: int) -> None:
    answers = {("GET", "/api/version"): [(status, "Unauthorized")]}
    with stranger(answers) as address, pytest.raises(ClusterError) as caught:
        JobServer(address)
    first, second = str(caught.value).splitlines()
    assert first.startswith(f"Ray at {address} asks for its token: Authentication ")
    assert "RAY_AUTH_MODE=token" in second
    assert "~/.ray/auth_token" in second


def test_the_given_address_wins_over_rays_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    with stranger(head_that(("GET", "/api/jobs/", 200, [DETAILS]))) as address:
        assert JobServer(address).jobs() == []  # a job, and not ours


def test_an_unknown_job_is_answered_with_the_nearest() -> None:
    ours = {**DETAILS, "metadata": {"partitune": "0.1.0+0", "study": "tiny"}}
    answers = head_that(
        ("GET", "/api/jobs/partitune", 404, "Job partitune-tiny-2 does not exist"), ("GET", "/api/jobs/", 200, [ours])
    )
    said = "no job partitune-tiny-2; did you mean partitune-tiny-1"
    with stranger(answers) as address, pytest.raises(ClusterError, match=said):
        JobServer(address).job("partitune-tiny-2")


NO_AGENT = (500, "No available agent to submit job, please try again later.")
SHIPMENT = pack(SearchSpace.load("tiny"), Runner.load("simulator"))


def submit(address: str) -> str:
    return JobServer(address).submit("true", SHIPMENT, study="tiny", results="", env={})


def test_a_head_whose_agent_still_starts_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_S", 0.01)
    answers = head_that(
        ("PUT", "/api/packages/", 200, ""),
        *(("POST", "/api/jobs/", *NO_AGENT) for _ in range(3)),
        ("POST", "/api/jobs/", 200, {"job_id": "a", "submission_id": "a"}),
    )
    with stranger(answers) as address:
        assert submit(address) == "a"


def test_an_agent_that_never_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "AGENT_S", 0.0)
    answers = head_that(("PUT", "/api/packages/", 200, ""), ("POST", "/api/jobs/", *NO_AGENT))
    with (
        stranger(answers) as address,
        pytest.raises(ClusterError, match=r"no agent takes the job.*dashboard_agent\.log"),
    ):
        submit(address)


def test_an_upload_that_is_refused_for_its_size_names_the_way_out() -> None:
    answers = head_that(("PUT", "/api/packages/", 413, "Request Entity Too Large"))
    with stranger(answers) as address, pytest.raises(ClusterError, match="--dry-run"):
        submit(address)


@pytest.mark.filterwarnings("ignore:ssl=None:DeprecationWarning")  # Ray's own call of aiohttp
def test_a_head_that_goes_while_a_log_is_followed_is_given_up_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOOK_S", 0.01)
    monkeypatch.setattr(client, "AWAY_S", 0.1)
    ours = {**DETAILS, "metadata": {"partitune": "0.1.0+0", "study": "tiny"}}
    place = ("GET", "/api/jobs/partitune-tiny-1")
    with stranger(head_that((*place, 200, ours), (*place, 503, "going down"))) as address:
        lines = JobServer(address).follow("partitune-tiny-1")
        start = time.monotonic()
        with pytest.raises(ClusterError, match="going down"):
            next(lines)
        assert time.monotonic() - start < 20  # and not when a silent log would be doubted
