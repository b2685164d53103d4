"""Search spaces: what is shipped loads, what is wrong is said completely, what is right survives storage."""

from __future__ import annotations

import copy
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from partitune.errors import SpecError
from partitune.spec.catalog import Kind, YamlText, list_catalog, shipped
from partitune.spec.domains import WholeRange
from partitune.spec.metrics import METRICS
from partitune.spec.search_space import SearchSpace
from partitune.spec.workload import MixWorkload
from partitune.store import check_study_name
from tests.strategies import json_values

SHIPPED = Path(str(shipped(Kind.SEARCH_SPACE)))
NAMES = sorted(path.stem for path in SHIPPED.iterdir())

GOOD = """\
kind: search_space
name: mine
model: kimi-k3
cluster: {nodes: 2, gpus_per_node: 8, gpu: B300}
engine: {name: vllm, version: "0.33.0", flags: {max_num_seqs: 128}, env: {NCCL_DEBUG: WARN}}
parallel: {tp: 2, pp: 4}
workload: {kind: random, requests: 16, prompt_tokens: 256, output_tokens: 32, concurrency: 16}
knobs:
  partition: {min_layers: 1, pinned: {0: 11}}
  max_num_batched_tokens: [512, 1024]
  max_num_seqs: {low: 16, high: 256, step: 16}
  gpu_memory_utilization: {low: 0.8, high: 0.95}
  async_scheduling: [true, false]
  env: {VLLM_X: ["0", "1"]}
objectives: [output_throughput_tok_s]
slo: {ttft_p99_ms: 2000}
seeds:
  - 11,11,12,12
  - {partition: [10, 12, 12, 12], knobs: {max_num_seqs: 32}, env: {VLLM_X: "1"}}
budget: {trials: 60}
random_seed: 0
"""


def read(text: str) -> SearchSpace:
    return SearchSpace.from_yaml(YamlText(text.encode(), "s.yaml", Path("/spaces")))


def faults(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        read(text)
    return str(caught.value).splitlines()


def with_line(number: int, line: str) -> str:
    rows = GOOD.splitlines()
    rows[number - 1] = line
    return "\n".join(rows)


#: One load and another, as the rows of mixes below write them.
SHORT = {"CHAT": "{kind: random, concurrency: 4}", "NIGHT": "{kind: trace, file: n.jsonl, name: n, weight: 2}"}


def written(text: str) -> str:
    return text.replace("CHAT", SHORT["CHAT"]).replace("NIGHT", SHORT["NIGHT"])


# ---- what is shipped


def test_the_issue_names_the_shipped_spaces() -> None:
    assert set(NAMES) >= {
        "kimi-k3-pp8-tp2", "kimi-k3-pp8-tp2-h200", "llama-70b-pp4", "deepseek-v3-pp4-tp8", "qwen3-235b-pp4-tp4", "tiny",
    }  # fmt: skip
    assert [entry.name for entry in list_catalog(Kind.SEARCH_SPACE)] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_space_loads_and_survives_storage(name: str) -> None:
    space = SearchSpace.load(name)
    assert space.name == name
    assert space.description
    stored = json.loads(json.dumps(space.resolved(), allow_nan=False))
    assert SearchSpace.from_mapping(stored, "stored study").resolved() == space.resolved()
    assert all(len(seed.partition) == space.parallel.pp for seed in space.seeds)


@pytest.mark.parametrize("name", NAMES)
def test_every_shipped_space_fits_its_json_schema(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checker = jsonschema.Draft202012Validator(SearchSpace.json_schema())
    written = yaml.safe_load((SHIPPED / f"{name}.yaml").read_text())
    assert [error.message for error in checker.iter_errors(written)] == []
    assert list(checker.iter_errors({**written, "knbos": {}}))
    assert list(checker.iter_errors({**written, "budget": {"trials": "60"}}))


def test_kimi_k3_is_the_profile_study() -> None:
    for name in ("kimi-k3-pp8-tp2", "kimi-k3-pp8-tp2-h200"):
        space = SearchSpace.load(name)
        assert (space.cluster.nodes, space.cluster.gpus_per_node) == (2, 8)
        assert (space.parallel.tp, space.parallel.pp) == (2, 8)
        load = space.resolved()["workload"]
        assert (load["requests"], load["prompt_tokens"], load["output_tokens"]) == (16, 256, 32)
        assert (load["concurrency"], load["range_ratio"]) == (16, 0.0)
        assert (space.engine.flags["max_num_batched_tokens"], space.engine.flags["max_num_seqs"]) == (16384, 128)
        assert (space.engine.flags["gpu_memory_utilization"], space.engine.flags["max_model_len"]) == (0.95, 32768)
        assert [sum(seed.partition) for seed in space.seeds] == [93, 93, 93]


# ---- what is right


def test_the_values_arrive_with_their_types() -> None:
    space = read(GOOD)
    assert (space.cluster.gpu, space.cluster.reserved_gib) == ("B300", 0.0)
    assert list(space.knobs.flags) == [
        "max_num_batched_tokens",
        "max_num_seqs",
        "gpu_memory_utilization",
        "async_scheduling",
    ]
    assert space.knobs.flags["max_num_batched_tokens"] == (512, 1024)
    assert space.knobs.flags["max_num_seqs"] == WholeRange(low=16, high=256, step=16)
    assert space.knobs.partition.pinned == {0: 11}
    assert [seed.partition for seed in space.seeds] == [(11, 11, 12, 12), (10, 12, 12, 12)]
    assert space.objectives[0].better == "maximize"
    assert METRICS["tpot_p99_ms"] == "minimize"
    assert len(METRICS) == 3 + 16 + 1 + 2 + 3


def test_stages_may_differ() -> None:
    space = read(
        with_line(
            4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: [B300, H200, H200, H100], reserved_gib: [4, 0, 0, 0.5]}"
        )
    )
    assert space.cluster.gpu == ("B300", "H200", "H200", "H100")
    assert space.cluster.reserved_gib == (4.0, 0.0, 0.0, 0.5)


def test_lines_stay_known_after_reading() -> None:
    space = pickle.loads(pickle.dumps(read(GOOD)))
    assert str(space.error("cluster", "gpu", text="x")).startswith("s.yaml:4: ")
    assert str(space.error("seeds", 1, "partition", text="x")).startswith("s.yaml:19: ")
    default = space.error("knobs", "partition", "max_layers", text="x")
    assert str(default).startswith("s.yaml:9: ")  # where its section stands
    error = space.error("seeds", 0, text="sums to 46; allowed: 93")
    assert str(error) == "s.yaml:18: seeds[0]: sums to 46; allowed: 93"


def test_a_space_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        read(GOOD).name = "other"  # type: ignore[misc]  # the point


def test_what_is_left_out_has_a_default() -> None:
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "H100"}
    space = SearchSpace.from_mapping(
        {"name": "cli", "model": "qwen3-8b", "cluster": cluster, "parallel": {"tp": 1, "pp": 2}}
    )
    assert space.objectives[0].metric == "output_throughput_tok_s"
    assert (space.engine.name, space.knobs.flags, space.seeds, space.slo) == ("vllm", {}, (), {})
    assert str(space.error("model", text="x")) == "command line: model: x"
    assert SearchSpace.from_mapping(space.resolved()).resolved() == space.resolved()


def test_paths_start_from_the_file_and_are_stored_absolute() -> None:
    space = read(with_line(3, "model: ../models/k3/config.json"))
    assert space.model_path == Path("/models/k3/config.json")
    assert space.resolved()["model"] == "/models/k3/config.json"
    assert read(GOOD).model_path is None
    assert read(GOOD).resolved()["model"] == "kimi-k3"
    trace = read(with_line(7, "workload: {kind: trace, file: load.jsonl}"))
    assert trace.trace_paths == (Path("/spaces/load.jsonl"),)
    assert SearchSpace.from_mapping(trace.resolved()).trace_paths == (Path("/spaces/load.jsonl"),)


def test_the_traces_of_a_mix_start_from_the_file_too() -> None:
    mix = read(with_line(7, written("workload: {kind: mix, parts: [CHAT, NIGHT, {kind: trace, file: b/c.jsonl}]}")))
    assert mix.trace_paths == (Path("/spaces/n.jsonl"), Path("/spaces/b/c.jsonl"))
    assert isinstance(mix.workload, MixWorkload)
    assert mix.workload.names == ("random", "n", "trace")
    again = SearchSpace.from_mapping(json.loads(json.dumps(mix.resolved())))
    assert again.trace_paths == mix.trace_paths
    assert [part["weight"] for part in again.resolved()["workload"]["parts"]] == [1, 2, 1]


def test_pinned_stages_survive_json_whose_keys_are_text() -> None:
    stored = json.loads(json.dumps(read(GOOD).resolved()))
    assert stored["knobs"]["partition"]["pinned"] == {"0": 11}
    assert SearchSpace.from_mapping(stored).knobs.partition.pinned == {0: 11}


@pytest.mark.parametrize("name", ["千问-235b", "Größe 2", "a/b", "v1[/x]"])
def test_a_search_space_is_called_what_a_study_may_be_called(name: str) -> None:
    assert read(GOOD.replace("name: mine", f"name: '{name}'")).name == name
    check_study_name(name)


# ---- what is wrong: line of GOOD, what stands there instead, key, parts of the message

WRONG = [
    (1, "kind: runner", "kind", ["found a runner", "allowed: search_space"]),
    (1, "kind: serach_space", "kind", ["did you mean search_space?"]),
    (2, "name: 'mine '", "name", ["'mine '", "no space at either end"]),
    (2, 'name: "a\\nb"', "name", [r"'a\nb'", "printable"]),
    (2, "name: 5", "name", ["the number 5", 'write it in quotes: "5"']),
    (2, "nmae: mine", "nmae", ["unknown key, did you mean name?", "allowed: kind, name, description, model"]),
    (3, "model: ''", "model", ["allowed: a model of the catalog"]),
    (3, "model: [a]", "model", ["a list of 1"]),
    (3, "model: ", "model", ["found nothing"]),
    (4, "cluster: 5", "cluster", ["the number 5", "nodes, gpus_per_node, gpu"]),
    (4, "cluster: {nodes: 0, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["the number 0", "from 1 to 4096"]),
    (4, 'cluster: {nodes: "2", gpus_per_node: 8, gpu: B300}', "cluster.nodes", ["the text '2' (remove the quotes)"]),
    (4, "cluster: {nodes: 2.0, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["2.0 (write 2)", "a whole number"]),
    (4, "cluster: {nodes: true, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["the boolean true", "a whole number"]),
    (4, "cluster: {nodes: 5000, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["5000", "from 1 to 4096"]),
    (4, "cluster: {nodes: yes, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["found yes, a boolean to YAML 1.1"]),
    (4, "cluster: {nodes: 1e3, gpus_per_node: 8, gpu: B300}", "cluster.nodes", ["found 1e3", "a plain decimal number"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8}", "cluster.gpu", ["missing", "a GPU type such as H200"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: []}", "cluster.gpu", ["an empty list"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: [H200, 5]}", "cluster.gpu[1]", ["the number 5", "a GPU type"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: [H200, H200]}", "cluster.gpu", ["a list of 2", "a list of 4"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: B300, reserved_gib: -1}", "cluster.reserved_gib", ["0 to 10000"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: B300, reserved_gib: .inf}", "cluster.reserved_gib", ["finite"]),
    (4, "cluster: {nodes: 2, gpus_per_node: 8, gpu: B300, links: {in_nod: a}}", "cluster.links.in_nod", ["in_node?"]),
    (4, "cluster: {nodes: 1, gpus_per_node: 7, gpu: B300}", "parallel.pp", ["needs 8 GPUs", "at most 7"]),
    (5, "engine: {version: 0.33}", "engine.version", ['write it in quotes: "0.33"']),
    (5, "engine: {version: latest}", "engine.version", ["'latest'", '"0.33.0"']),
    (5, "engine: {runner: v3}", "engine.runner", ["'v3'", "auto", "v1 or v2"]),
    (5, "engine: {flags: {max-num-seqs: 5}}", "engine.flags.max-num-seqs", ["mean max_num_seqs?", "snake"]),
    (5, "engine: {flags: {--max-num-seqs: 5}}", "engine.flags.--max-num-seqs", ["did you mean max_num_seqs?"]),
    (5, "engine: {flags: {a: [1]}}", "engine.flags.a", ["a list of 1", "text, a finite number, true or false"]),
    (5, "engine: {flags: {a: }}", "engine.flags.a", ["found nothing"]),
    (5, "engine: {flags: [a]}", "engine.flags", ["a list of 1", "a mapping of engine flags"]),
    (5, "engine: {env: {A: true}}", "engine.env.A", ["the boolean true", "a variable is text"]),
    (5, "engine: {env: {A-B: x}}", "engine.env.A-B", ["an environment variable"]),
    (5, "engine: {env: {max_num_seqs: x}}", "engine.env.max_num_seqs", ["in upper case"]),
    (5, "engine: {env: {A: two words}}", "engine.env.A", ["'two words'", "docker", "letters", "env of a runner"]),
    (5, "engine: {env: {PPID: 1}}", "engine.env.PPID", ["a shell keeps this name"]),
    (5, "engine: {flags: {max_num_seqs: 100}}", "engine.flags.max_num_seqs", ["100", "16 to 256 in steps of 16"]),
    (6, "parallel: {tp: [4, 1, 2, 1], pp: 4}", "parallel.tp", ["a size per stage", "one whole number for all stages"]),
    (6, "parallel: {tp: 2}", "parallel.pp", ["missing", "a whole number from 1 to 1024"]),
    (6, "parallel: {tp: 12, pp: 1}", "parallel.tp", ["found 12", "at most 8", "a multiple of it"]),
    (6, "parallel: {tp: 4, pcp: 4, pp: 1}", "parallel.pcp", ["found 4, so that tp × pcp is 16", "at most 8"]),
    (6, "parallel: {tp: 1, pcp: 3, pp: 4}", "parallel.pcp", ["tp × pcp is 3, which puts a stage on two nodes"]),
    (6, "parallel: {tp: 8, dp: 3, pp: 1}", "parallel", ["tp 8 × pp 1 × dp 3 needs 24 GPUs", "at most 16"]),
    (6, "parallel: {tp: 3, pp: 4}", "parallel.tp", ["a stage on two nodes", "a divisor of cluster.gpus_per_node (8)"]),
    (7, "workload: {kind: randm}", "workload.kind", ["'randm', did you mean random?", "random, trace"]),
    (7, "workload: {requests: 4}", "workload.kind", ["missing", "kind: random or trace"]),
    (7, "workload: random", "workload", ["the text 'random'", "a mapping with kind"]),
    (7, "workload: {kind: random}", "workload", ["neither concurrency nor request_rate_req_s"]),
    (7, "workload: {kind: random, concurrency: 4, request_rate_req_s: 1}", "workload", ["found both"]),
    (7, "workload: {kind: random, concurrency: 4, burstiness: 2}", "workload.burstiness", ["without request_rate"]),
    (7, "workload: {kind: random, concurrency: 4, range_ratio: 1}", "workload.range_ratio", ["less than 1"]),
    (7, "workload: {kind: random, concurrency: 4, requests: 1000001}", "workload.requests", ["from 1 to 1000000"]),
    (7, "workload: {kind: random, concurrency: 4, promt_tokens: 5}", "workload.promt_tokens", ["mean prompt_tokens?"]),
    (7, "workload: {kind: trace}", "workload.file", ["missing", "a trace file"]),
    (9, "  partition: {min_layers: 5, max_layers: 4}", "knobs.partition.min_layers", ["found 5 above max_layers (4)"]),
    (9, "  partition: {pinned: {4: 11}}", "knobs.partition.pinned[4]", ["no stage 4", "0 to 3"]),
    (9, "  partition: {pinned: {first: 11}}", "knobs.partition.pinned.first", ["stage number"]),
    (9, "  partition: {pinned: {0: 0}}", "knobs.partition.pinned[0]", ["the number 0"]),
    (9, "  partition: {pinned: {0: 9}, max_layers: 8}", "knobs.partition.pinned[0]", ["9 layers", "1 to 8"]),
    (9, "  partition: {search: fast}", "knobs.partition.search", ["'fast'", "exact", "free"]),
    (9, "  partiton: {min_layers: 2}", "knobs.partiton", ["did you mean partition?"]),
    (10, "  max_num_batched_tokens: 512", "knobs.max_num_batched_tokens", ["512", "a list of values", "engine.flags"]),
    (10, "  max_num_batched_tokens: []", "knobs.max_num_batched_tokens", ["an empty list"]),
    (10, "  max_num_batched_tokens: [512, 512]", "knobs.max_num_batched_tokens", ["512 twice"]),
    (10, "  max_num_batched_tokens: [512, 512.0]", "knobs.max_num_batched_tokens", ["512.0 twice"]),
    (10, "  max_num_batched_tokens: [512, [1]]", "knobs.max_num_batched_tokens[1]", ["a list of 1"]),
    (10, "  max-num-batched-tokens: [512]", "knobs.max-num-batched-tokens", ["did you mean max_num_batched_tokens?"]),
    (10, "  5: [512]", "knobs[5]", ["unknown key"]),
    (11, "  max_num_seqs: {low: 256, high: 16}", "knobs.max_num_seqs.low", ["found 256 above high (16)"]),
    (11, "  max_num_seqs: {low: 16, high: 250, step: 16}", "knobs.max_num_seqs.high", ["miss", "240 or 256"]),
    (11, "  max_num_seqs: {low: 16, high: 256, step: 0}", "knobs.max_num_seqs.step", ["the number 0"]),
    (11, "  max_num_seqs: {low: 0, high: 256, log: true}", "knobs.max_num_seqs.low", ["more than 0"]),
    (11, "  max_num_seqs: {low: 1, high: 256, log: true, step: 5}", "knobs.max_num_seqs.step", ["step or log"]),
    (11, "  max_num_seqs: {low: 16}", "knobs.max_num_seqs.high", ["missing"]),
    (11, "  max_num_seqs: {low: 16, high: 256, stp: 2}", "knobs.max_num_seqs.stp", ["did you mean step?"]),
    (12, "  gpu_memory_utilization: {low: 0.8, high: 1.05, step: .1}", "knobs.gpu_memory_utilization.high", ["1 or"]),
    (14, "  env: {VLLM_X: [true]}", "knobs.env.VLLM_X[0]", ["a variable is text"]),
    (14, "  env: {VLLM_X: ['0', 'a=b']}", "knobs.env.VLLM_X[1]", ["'a=b'", "letters, digits"]),
    (14, "  env: {UID: ['0']}", "knobs.env.UID", ["a shell keeps this name"]),
    (14, "  env: {1X: ['0']}", "knobs.env.1X", ["not a name"]),
    (15, "objectives: [throughput]", "objectives[0]", ["did you mean", "output_throughput_tok_s"]),
    (15, "objectives: []", "objectives", ["an empty list", "a list of metrics"]),
    (15, "objectives: output_throughput_tok_s", "objectives", ["a list of metrics"]),
    (15, "objectives: [kv_tokens, kv_tokens]", "objectives", ["kv_tokens twice"]),
    (15, "objectives: [{metric: ttft_p99_ms, direction: maximize}]", "objectives[0].direction", ["minimize"]),
    (16, "slo: {ttft_p98_ms: 2}", "slo.ttft_p98_ms", ["did you mean ttft_p9"]),
    (16, "slo: {ttft_p99_ms: 0}", "slo.ttft_p99_ms", ["above 0"]),
    (16, "slo: {goodput_req_s: 1}", "slo.goodput_req_s", ["needs goodput"]),
    (16, "goodput: {ttft_ms: 0}", "goodput.ttft_ms", ["more than 0"]),
    (16, "slo: {ttft_p99_ms: '5'}", "slo.ttft_p99_ms", ["remove the quotes"]),
    *((18, f"  - {seed}", "seeds[0]", ["such as 10,11,12"]) for seed in
      ("10, 11,12", "' 10,11'", "+10,38", "1_0,38", "'10,38,'", "'\"10,38\"'", "10，38", "10;38", "0,48", "-1,49", "''",
       "'[10,38]'", "१०,३८", "10.0,38", "48", "true")),
    (18, "  - [10, 0]", "seeds[0][1]", ["the number 0"]),
    (18, '  - ["10", 38]', "seeds[0][0]", ["the text '10' (remove the quotes)"]),
    (18, "  - {partition: '10, 38'}", "seeds[0].partition", ["such as 10,11,12"]),
    (18, "  - {knobs: {}}", "seeds[0].partition", ["missing"]),
    (18, "  - {partition: '10,38', knobs: {max_num_seq: 32}}", "seeds[0].knobs.max_num_seq", ["mean max_num_seqs?"]),
    (18, "  - {partition: '10,38', knobs: {max_num_seqs: 20}}", "seeds[0].knobs.max_num_seqs", ["cannot propose"]),
    (18, "  - {partition: '10,38', knobs: {async_scheduling: 1}}", "seeds[0].knobs.async_scheduling", ["true, false"]),
    (18, "  - {partition: '10,38', env: {VLLM_X: '2'}}", "seeds[0].env.VLLM_X", ["0, 1"]),
    (20, "budget: {trials: 0}", "budget.trials", ["from 1 to 1000000"]),
    (20, "budget: {hours: -1}", "budget.hours", ["more than 0"]),
    (20, "budget: {trails: 5}", "budget.trails", ["did you mean trials?"]),
    (21, "random_seed: -1", "random_seed", ["from 0 to 4294967295"]),
    (21, "random_seed: 0.5", "random_seed", ["the number 0.5"]),
    (21, "name: again", "name", ["duplicate key; first given in line 2"]),
]  # fmt: skip


WRONG_MIXES = [
    ("parts: []", "parts", ["an empty list", "two to 100 loads", "name, weight"]),
    ("parts: [CHAT]", "parts", ["found one load", "as the workload itself"]),
    ("parts: [CHAT, CHAT]", "parts[1].name", ["none, which stands for random, a second time"]),
    ("parts: [CHAT, NIGHT, NIGHT]", "parts[2].name", ["found n a second time"]),
    ("parts: [CHAT, {kind: mix}]", "parts[1].kind", ["'mix'; allowed: random, trace"]),
    ("over: best, parts: [CHAT, NIGHT]", "over", ["'best'", "mean", "worst"]),
    ("over: worst, parts: [CHAT, NIGHT]", "parts[1].weight", ["found 2", "with over: mean"]),
    ("parts: [CHAT, {kind: trace, file: f, weight: 0}]", "parts[1].weight", ["the number 0", "more than 0"]),
    ("parts: [CHAT, {kind: trace, file: f, name: a/b}]", "parts[1].name", ["'a/b'"]),
    ("parts: [CHAT, {kind: random}]", "parts[1]", ["neither concurrency nor request_rate_req_s"]),
    ("concurrency: 4, parts: [CHAT, NIGHT]", "concurrency", ["unknown key", "kind, over, parts"]),
]


@pytest.mark.parametrize(("text", "key", "parts"), WRONG_MIXES)
def test_a_fault_of_a_mix_names_the_part(text: str, key: str, parts: list[str]) -> None:
    said = faults(with_line(7, written(f"workload: {{kind: mix, {text}}}")))
    (at_key,) = [row for row in said if row.startswith(f"s.yaml:7: workload.{key}: ")]
    assert all(part in at_key for part in parts), at_key
    assert "allowed" in at_key


def test_only_a_part_has_a_weight() -> None:
    (said,) = faults(with_line(7, "workload: {kind: random, concurrency: 4, weight: 2}"))
    assert said.startswith("s.yaml:7: workload.weight: unknown key")


@pytest.mark.parametrize(("line", "text", "key", "parts"), WRONG)
def test_a_fault_names_its_line_its_key_and_what_is_allowed(line: int, text: str, key: str, parts: list[str]) -> None:
    said = faults(with_line(line, text))
    at_key = [row for row in said if re.match(rf"s\.yaml:\d+: {re.escape(key)}: ", row)]
    assert at_key, said
    at_line = line if key.split(".")[0] in text or line > 8 else 6  # tp and pp are judged where they stand
    assert at_key[0].startswith(f"s.yaml:{at_line}: ")
    for part in parts:
        assert part in at_key[0]
    assert "pydantic" not in str(said)
    assert "allowed" in at_key[0] or "duplicate" in at_key[0]


def test_a_seed_written_twice_is_refused() -> None:
    assert faults(with_line(18, "  - 11,11,12,12\n  - [11, 11, 12, 12]")) == [
        "s.yaml:17: seeds: found one candidate twice, as [0] and [1]; allowed: every candidate once"
    ]


def test_every_fault_of_a_file_is_told_at_once_in_the_order_of_its_lines() -> None:
    text = GOOD
    for number, line in [
        (4, "cluster: {nodes: two, gpus_per_node: 8, gpu: [B300, B300]}"),
        (6, "parallel: {tp: 2, pp: 4, ep: 1}"),
        (9, "  partition: {pinned: {7: 11}}"),
        (12, "  gpu_memory_utilization: {low: 0.9, high: 0.8}"),
        (16, "slo: {ttft_p99_ms: on}"),
        (20, "budget: {trials: 60}\nbudget: {trials: 61}"),
    ]:
        rows = text.splitlines()
        rows[number - 1] = line
        text = "\n".join(rows)
    said = faults(text)
    places = [row.split(": ", 2)[:2] for row in said]
    assert places == [
        ["s.yaml:4", "cluster.nodes"],
        ["s.yaml:6", "parallel.ep"],
        ["s.yaml:12", "knobs.gpu_memory_utilization.low"],
        ["s.yaml:16", "slo.ttft_p99_ms"],
        ["s.yaml:21", "budget"],
    ]


def test_sections_are_compared_although_others_are_wrong() -> None:
    text = with_line(9, "  partition: {pinned: {7: 11}}").replace("budget: {trials: 60}", "budget: {trials: x}")
    assert [row.split(": ")[1] for row in faults(text)] == ["knobs.partition.pinned[7]", "budget.trials"]


def test_faults_of_the_command_line_have_no_line_but_the_same_words() -> None:
    with pytest.raises(SpecError) as caught:
        SearchSpace.from_mapping({"name": "x", "model": "m", "cluster": {"nodes": 0}, "parallel": {"tp": 1, "pp": "2"}})
    rows = str(caught.value).splitlines()
    assert rows[:2] == [
        "command line: cluster.nodes: found the number 0; allowed: a whole number from 1 to 4096 (machines)",
        "command line: cluster.gpus_per_node: missing; allowed: a whole number from 1 to 1024 (GPUs of a machine)",
    ]
    assert rows[2].startswith("command line: cluster.gpu: missing; allowed: a GPU type such as H200, a mapping with")
    assert rows[3].startswith(
        "command line: parallel.pp: found the text '2' (remove the quotes); allowed: a whole number"
    )
    assert len(rows) == 4


# ---- properties

trees = json_values(st.text(max_size=12) | st.just("10,11"), keys=st.text(max_size=8) | st.integers(), most=3, leaves=8)
RESOLVED: dict[str, Any] = json.loads(json.dumps(read(GOOD).resolved()))


def places_in(tree: object, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    steps = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [path, *(place for key, inner in steps for place in places_in(inner, (*path, key)))]


def refused_or_made(make: Callable[[], SearchSpace]) -> SearchSpace | str:
    """The spec, or the message of its refusal; anything else raised is a bug."""
    try:
        return make()
    except SpecError as error:
        return str(error)


def checked(value: object) -> None:
    """Whatever comes in is refused with a message, or is a spec that survives storage."""
    space = refused_or_made(lambda: SearchSpace.from_mapping(value))  # type: ignore[arg-type]  # wrong on purpose
    if isinstance(space, str):
        assert all(row.startswith("command line: ") for row in space.splitlines())
        return
    stored = json.loads(json.dumps(space.resolved(), allow_nan=False))
    assert SearchSpace.from_mapping(stored).resolved() == space.resolved()


@given(trees)
@settings(max_examples=150, deadline=None)
def test_any_structure_is_refused_or_survives(tree: object) -> None:
    checked(tree)
    checked({**RESOLVED, "knobs": tree})


@given(st.lists(st.tuples(st.sampled_from(places_in(RESOLVED)[1:]), trees, st.booleans()), min_size=1, max_size=3))
@settings(max_examples=400, deadline=None)
def test_a_good_spec_with_wrong_pieces_is_refused_or_survives(
    changes: list[tuple[tuple[Any, ...], object, bool]],
) -> None:
    spec = copy.deepcopy(RESOLVED)
    for path, value, remove in changes:
        at: Any = spec
        try:
            for part in path[:-1]:
                at = at[part]
            if remove:
                del at[path[-1]]
            else:
                at[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    checked(spec)


@given(
    st.lists(
        st.tuples(st.integers(0, len(GOOD)), st.sampled_from([*" :-[]{},#&*!|'\"\n\t01ax"]), st.booleans()), max_size=4
    )
)
@settings(max_examples=200, deadline=None)
def test_a_good_file_with_wrong_characters_is_refused_or_read(changes: list[tuple[int, str, bool]]) -> None:
    text = GOOD
    for index, character, replace in changes:
        text = text[:index] + character + text[index + replace :]
    outcome = refused_or_made(lambda: read(text))
    if isinstance(outcome, str):
        assert all(re.match(r"s\.yaml:\d+: ", row) for row in outcome.splitlines())
