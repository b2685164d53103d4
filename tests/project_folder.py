"""A project as users have it: a model by path, weights and .git beside it, ignore files that name what matters."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

SPACE = """
kind: search_space
name: mine
model: ./model
cluster: {nodes: 1, gpus_per_node: 2, gpu: L40S}
parallel: {tp: 1, pp: 2}
workload: {kind: trace, file: load/trace.jsonl}
knobs:
  max_num_batched_tokens: [256, 512]
budget: {trials: 4}
"""
IGNORED = "*.json\n*.jsonl\nload/\nmodel\nresults.db*\n"
BIG = 300 * 2**20


def make_project(folder: Path) -> Path:
    """The search space of a new project in `folder`."""
    for name in ("model/.git", "load", ".git/objects", "venv"):
        (folder / name).mkdir(parents=True)
    config = files("partitune.models").joinpath("configs", "Qwen--Qwen3-8B.json").read_bytes()
    (folder / "model" / "config.json").write_bytes(config)
    for name in ("model/model-00001-of-00002.safetensors", ".git/objects/pack", "model/.git/pack", "results.db"):
        with (folder / name).open("wb") as file:
            file.truncate(BIG)
    for name in (".gitignore", ".rayignore", "model/.gitignore", "load/.rayignore"):
        (folder / name).write_text(IGNORED)
    lines = [{"timestamp_s": 0.1 * i, "prompt_tokens": 100 + i, "output_tokens": 8} for i in range(16)]
    (folder / "load" / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "mine.yaml").write_text(SPACE)
    return folder / "mine.yaml"
