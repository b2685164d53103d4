"""`toy serve` and `toy bench`, scripted with the standard library: real processes, real HTTP, no model."""

from __future__ import annotations

import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from statistics import fmean, quantiles

LAYER_S = 0.001
FLAGS = (
    *("model", "stages", "tensor-ranks", "batch-tokens", "running-requests", "page-tokens", "memory-share", "config"),
    *("served-name", "host", "port", "nodes", "node", "meet-at"),
    *("weights-type", "seed", "log-level", "download-folder", "tokenizer", "chat-template", "workers"),
)
BENCH_FLAGS = (
    *("url", "model", "served-name", "prompt-tokens", "output-tokens", "clients", "requests", "seed", "result"),
)


def say(message: str) -> None:
    print(f"toy[main] {message}", flush=True)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    prompt_tokens = output_tokens = running = 0

    def __init__(self, words: argparse.Namespace, slowest_s: float) -> None:
        super().__init__((words.host, int(words.port)), Handler)
        self.name, self.slowest_s = words.served_name, slowest_s

    @property
    def page(self) -> str:
        counted = {"prompt_tokens_total": self.prompt_tokens, "output_tokens_total": self.output_tokens}
        return "".join(
            f"toy_{name} {value}\n"
            for name, value in {**counted, "requests_running": self.running, "pages": 4096}.items()
        )


class Handler(BaseHTTPRequestHandler):
    server: Server

    def log_message(self, *_: object) -> None:
        """Silent."""

    def answer(self, text: str) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self) -> None:
        names = json.dumps({"data": [{"id": self.server.name}]})
        self.answer({"/health": "", "/v1/models": names, "/metrics": self.server.page}[self.path])

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.running += 1
        self.server.prompt_tokens += len(asked["prompt"].split())
        self.send_response(200)
        self.end_headers()
        texts = [f" w{place}" for place in range(asked["max_tokens"])]
        for text in texts:
            time.sleep(self.server.slowest_s)
            self.server.output_tokens += 1
            if asked["stream"]:
                self.wfile.write(f"{text}\n".encode())
        if not asked["stream"]:
            self.wfile.write(json.dumps({"choices": [{"text": "".join(texts)}]}).encode())
        self.server.running -= 1


def serve(words: argparse.Namespace) -> None:
    layers = [int(part) for part in os.environ["TOY_STAGE_LAYERS"].split(",")]
    say("meeting")
    say(f"loading layers {layers}")
    say("planning pages")
    server = Server(words, LAYER_S * max(layers))
    say("serving")
    server.serve_forever()


def bench(words: argparse.Namespace) -> None:
    tokens = int(words.output_tokens)

    def ask(number: int) -> list[float]:
        prompt = " ".join(f"{words.seed}.{number}" for _ in range(int(words.prompt_tokens)))
        asked = {"model": words.served_name, "prompt": prompt, "max_tokens": tokens, "stream": True}
        begin = time.perf_counter()
        with urllib.request.urlopen(f"{words.url}/v1/completions", json.dumps(asked).encode()) as answer:
            return [begin, *(time.perf_counter() for _ in answer)]

    begin = time.perf_counter()
    with ThreadPoolExecutor(int(words.clients)) as pool:
        moments = list(pool.map(ask, range(int(words.requests))))
    seconds = time.perf_counter() - begin
    whole = [each for each in moments if len(each) == tokens + 1]
    spans = {
        "ttft": [first - begin for begin, first, *_ in whole],
        "tpot": [(each[-1] - each[1]) / (tokens - 1) for each in whole],
        "itl": [after - before for each in whole for before, after in pairwise(each[1:])],
        "e2e": [each[-1] - each[0] for each in whole],
    }
    result: dict[str, float] = {"completed": len(whole), "total_input_tokens": len(whole) * int(words.prompt_tokens)}
    result |= {"total_output_tokens": len(whole) * tokens, "duration": seconds}
    for name, values in spans.items():
        points = quantiles(values, n=100)
        result |= {f"mean_{name}_ms": 1000 * fmean(values)}
        result |= {f"p{point}_{name}_ms": 1000 * points[point - 1] for point in (50, 90, 99)}
    Path(words.result).write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser("toy")
    commands = parser.add_subparsers(required=True)
    for name, flags, run in (("serve", FLAGS, serve), ("bench", BENCH_FLAGS, bench)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for flag in flags:
            command.add_argument(f"--{flag}")
    words = parser.parse_args()
    words.run(words)


if __name__ == "__main__":
    main()
