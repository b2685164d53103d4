"""Record what SGLang's own scheduler does under pipeline parallelism, without a GPU.

    python -m benchmarks.record_sglang_schedules --sglang PATH --out tests/data/schedules_sglang_0_5_23.json
    python -m benchmarks.record_sglang_schedules --sglang PATH --out tests/data/schedules_sglang_0_5_23_texts.json.gz
        --scenarios benchmarks/sglang_text_scenarios.yaml

PATH is a directory that holds the package `sglang` (an unpacked wheel or a site-packages), run by a Python that has its
light dependencies (torch for CPU, transformers, msgspec, ...); none of its CUDA packages are needed.

Decision: the real `Scheduler` runs, one a stage and a thread: its pipeline loop (`event_loop_pp`, or
`event_loop_normal` with one stage), `get_next_batch_to_run`, `PrefillAdder`, `ScheduleBatch`, the allocators, the radix
cache, the retraction and the result processing are SGLang's. Replaced are the model (a stage takes
`scale[s] * (base + per_token * tokens)`), the streams and links (sglang_virtual_device.py), the sockets, and what only
reports (sglang_recorded.py). Every stage schedules for itself, as in the engine; the recorder checks that all came to
the same batches. Written against 0.5.23.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

from benchmarks.sglang_scenarios import SCENARIOS, scenarios


def rounded(value: Any) -> Any:
    """Six digits everywhere."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def main() -> None:
    """Record all scenarios, or those named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sglang", type=Path, required=True, help="directory that holds the package sglang")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write, gzipped where it ends with .gz")
    parser.add_argument("--scenarios", type=Path, default=SCENARIOS, help="YAML file of the runs")
    parser.add_argument("names", nargs="*", help="scenarios; default: all")
    options = parser.parse_args()
    sys.path.insert(0, str(options.sglang))
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    from benchmarks.sglang_recorded import EngineAborts
    from benchmarks.sglang_run import record

    records = []
    for scenario in scenarios(options.scenarios):
        if options.names and scenario.name not in options.names:
            continue
        try:
            found = rounded(record(scenario))
        except EngineAborts:
            print(f"{scenario.name}: not recorded, SGLang aborts a request", flush=True)
            continue
        batches = sum(1 for step in found["steps"] if step["tokens"])
        print(
            f"{scenario.name}: {batches} batches, {found['retractions']} retractions, {found['makespan']} s", flush=True
        )
        records.append(found)
    text = "[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in records) + "\n]\n"
    content = text.encode()
    options.out.write_bytes(gzip.compress(content, mtime=0) if options.out.suffix == ".gz" else content)


if __name__ == "__main__":
    main()
