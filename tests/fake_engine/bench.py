"""The fake `vllm bench serve`: sends real requests that stream, and writes the file of the real one.

Keys as in a recorded result of vllm 0.32.0. Acts: bench-half (a file cut in the middle), bench-none (no request
completes, exit status 0: what the real one does when the engine died), bench-nan, bench-hang, bench-input:FACTOR and
bench-output:FACTOR (counts so many times too high), bench-bursts (reads only twice a request), bench-twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import random
import threading
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from acts import act  # type: ignore[import-not-found]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def read(answer: Iterable[bytes]) -> Iterator[bytes]:
    """Its lines as they come, or a dozen at a time, as a proxy that collects hands them on."""
    held: list[bytes] = []
    for line in answer:
        held.append(line)
        if act("bench-bursts") is None or len(held) == 12:
            yield from held
            held.clear()
    yield from held


def bench(words: argparse.Namespace) -> None:
    if act("bench-hang") is not None:
        time.sleep(3600)
    count, tokens = int(words.num_prompts), int(words.random_output_len or 16)
    chance = random.Random(int(words.seed or 0))
    prompts: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for _ in range(count):
        prompts.put(" ".join(str(chance.randrange(10**6)) for _ in range(int(words.random_input_len or 16))))
    results: list[tuple[list[float], float, float]] = []
    errors: list[str] = []

    def client() -> None:
        while not prompts.empty():
            start = time.perf_counter()
            asked = {"model": words.served_model_name, "prompt": prompts.get(), "max_tokens": tokens, "stream": True}
            key = os.environ.get("OPENAI_API_KEY")
            headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
            request = urllib.request.Request(words.base_url + words.endpoint, json.dumps(asked).encode(), headers)
            try:
                with urllib.request.urlopen(request) as answer:
                    moments = [time.perf_counter() for line in read(answer) if line.startswith(b'data: {"choices')]
            except OSError as error:
                errors.append(str(error))
                continue
            if len(moments) < tokens:
                errors.append(f"{len(moments)} of {tokens} tokens")
                continue
            results.append((moments, start, moments[-1]))

    begin = time.perf_counter()
    clients = [threading.Thread(target=client) for _ in range(min(count, int(words.max_concurrency or count)))]
    for one in clients:
        one.start()
    for one in clients:
        one.join()
    duration = time.perf_counter() - begin
    results = [] if act("bench-none") is not None else results
    done = len(results)
    received = done * tokens * int(act("bench-output") or 1)
    sent = int(done * int(words.random_input_len or 16) * float(act("bench-input") or 1))
    series = {
        "ttft": [moments[0] - start for moments, start, _ in results],
        "tpot": [(end - moments[0]) / max(1, tokens - 1) for moments, _, end in results],
        "itl": [later - sooner for moments, _, _ in results for sooner, later in itertools.pairwise(moments)],
        "e2el": [end - start for _, start, end in results],
    }
    body: dict[str, object] = {
        "date": time.strftime("%Y%m%d-%H%M%S"), "endpoint_type": "openai", "backend": words.backend, "label": None,
        "model_id": words.served_model_name, "tokenizer_id": words.model, "num_prompts": count, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": int(words.max_concurrency or 0) or None, "duration": duration,
        "completed": done, "failed": count - done, "total_input_tokens": sent,
        "total_output_tokens": received, "request_throughput": done / duration, "request_goodput": None,
        "output_throughput": float("nan") if act("bench-nan") is not None else received / duration,
        "total_token_throughput": (sent + received) / duration,
        "output_lens": [tokens] * done, "errors": errors, "ttfts": series["ttft"],
    }  # fmt: skip
    for name, values in series.items():
        milliseconds = [1000 * value for value in values]
        mean = sum(milliseconds) / max(1, len(milliseconds))
        body |= {f"mean_{name}_ms": mean, f"median_{name}_ms": percentile(milliseconds, 0.5), f"std_{name}_ms": 0.0}
        body |= {f"p{point}_{name}_ms": percentile(milliseconds, point / 100) for point in (50, 90, 99)}
    text = json.dumps(body)
    text += f"\n{text}" if act("bench-twice") is not None else ""
    Path(words.result_dir, words.result_filename).write_text(
        text[: len(text) // 2] if act("bench-half") is not None else text
    )
