"""Record what vLLM's own scheduler does under pipeline parallelism, without a GPU, a worker or vLLM's dependencies.

    python -m benchmarks.record_vllm_schedules --vllm PATH --regimes R1,R2 --count 2 --out schedules.json.gz
    python -m benchmarks.record_vllm_schedules --vllm PATH --again RECORDINGS.json --out again.json

PATH is the folder of an unpacked wheel, as `pip download --no-deps vllm==0.33.0` and `unzip` leave it. Scenarios are
drawn (vllm_scenarios.py), or those of a file that was recorded before. Records of several wheels may be written to one
file, wheel after wheel: `--add`.

Decision: see vllm_wheel.py for what runs of the engine, and vllm_drive.py for what is replaced. Written against 0.33.0;
0.30.0, 0.31.0 and 0.32.0 record as well. V1 runner with async scheduling is refused since 0.31.0 (`config/vllm.py`), so
R1 is drawn of older releases only unless it is named.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.vllm_scenarios import KINDS, REGIMES, scenario
from benchmarks.vllm_wheel import Wheel
from partitune.engines.versions import Version, parse_version

#: What a record may leave out.
_DEFAULTS = {
    "enable_prefix_caching": False,
    "scheduling_policy": "fcfs",
    "prefill_schedule_interval": 1,
    "watermark": 0.0,
}
_REQUEST_DEFAULTS = {"priority": 0, "stops_early": False, "prefix": None}


def read(file: Path) -> list[dict[str, Any]]:
    """The records of a file, gzipped or not, with what they leave out."""
    content = file.read_bytes()
    found = json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)
    return [
        _DEFAULTS | record | {"requests": [_REQUEST_DEFAULTS | request for request in record["requests"]]}
        for record in found
    ]


def write(file: Path, records: list[dict[str, Any]]) -> None:
    """Records as `read` takes them, one a line; a gzipped file holds no time, so that the same records are the same."""
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in records)
    text = f"[{lines}]\n".encode()
    file.write_bytes(gzip.compress(text, mtime=0) if file.suffix == ".gz" else text)


def allowed(version: str) -> tuple[str, ...]:
    """The regimes that a release starts in with a pipeline."""
    return REGIMES if parse_version(version) < Version(0, 31) else REGIMES[1:]


def drawn(kinds: list[str], regimes: tuple[str, ...], first: int, count: int) -> Iterator[dict[str, Any]]:
    """`count` scenarios of each kind in each regime."""
    for regime in regimes:
        for kind in kinds:
            for number in range(first, first + count):
                yield scenario(kind, number, regime)


def main() -> None:
    """Record drawn scenarios, or those of a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vllm", type=Path, required=True, help="folder of an unpacked wheel")
    parser.add_argument("--out", type=Path, required=True, help="file to write; gzipped if it ends in .gz")
    parser.add_argument("--add", action="store_true", help="behind what the file holds")
    parser.add_argument("--again", type=Path, help="a file of recordings whose scenarios are recorded")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what to draw; default: %(default)s")
    parser.add_argument("--regimes", help="of R1,R2,R3,R4; default: what the release allows")
    parser.add_argument("--first", type=int, default=0, help="number of the first of a kind")
    parser.add_argument("--count", type=int, default=4, help="scenarios of a kind in a regime")
    options = parser.parse_args()
    wheel = Wheel(options.vllm)
    from benchmarks.vllm_drive import EngineStands, recorded

    regimes = tuple(options.regimes.split(",")) if options.regimes else allowed(wheel.version)
    kinds = options.kinds.split(",")
    scenarios = read(options.again) if options.again else drawn(kinds, regimes, options.first, options.count)
    records = read(options.out) if options.add else []
    for each in scenarios:
        try:
            records.append(record := recorded(wheel, each))
        except EngineStands:
            print(f"{each['name']} {each['regime']}: not recorded, the engine goes on for ever", flush=True)
            continue
        print(
            f"{record['name']} {record['regime']}: {len(record['steps'])} steps, {record['preemptions']} preemptions, "
            f"{record['prefix_cache_hits']} of {record['prefix_cache_queries']} tokens hit",
            flush=True,
        )
    write(options.out, records)


if __name__ == "__main__":
    main()
