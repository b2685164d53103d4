"""What is started where: held against the help of the real vLLM and what its launchers read (0.32.0), and SGLang's."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from partitune.candidate import Candidate
from partitune.engines.installed_flags import read_help
from partitune.errors import Refused, SpecError
from partitune.execution.processes.launch import LaunchCommands
from partitune.execution.server.gates import Asked
from partitune.execution.server.setup import Setup
from partitune.execution.server.setup_checks import all_commands, setup_for
from partitune.planning.resolve import resolve
from partitune.report.launched import dry_run_json
from partitune.search.launching import DryRun
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.engine_output import recorded

TWO_NODES = {"cluster": {"nodes": 2, "gpus_per_node": 2, "gpu": "L40S"}, "parallel": {"tp": 1, "pp": 4}}
ONE_NODE = {"cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S"}, "parallel": {"tp": 1, "pp": 2}}
LOAD = {"kind": "random", "requests": 24, "prompt_tokens": 160, "output_tokens": 20, "concurrency": 8}
HOSTS = ("10.0.0.1", "10.0.0.2")


def setup_of(space: dict[str, object], **runner: object) -> Setup:
    whole = {"name": "s", "model": "qwen3-8b", "workload": LOAD, **space}
    found = SearchSpace.from_mapping(whole, source="s.yaml")
    return setup_for(
        resolve(found), found, Runner.from_mapping({"name": "r", "driver": "vllm", **runner}, source="r.yaml")
    )


def plan(made: Setup, partition: tuple[int, ...], hosts: tuple[str, ...], **flags: int) -> LaunchCommands:
    return made.server.launch(Candidate(partition, flags), trial="t1", hosts=hosts, port=8100, rendezvous_port=29600)


def value(words: tuple[str, ...], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


def test_vllm_on_two_nodes_is_one_group_each_and_only_the_first_serves() -> None:
    # vLLM 0.32 entrypoints/cli/serve.py run_headless, v1/executor/multiproc_executor.py: ranks contiguous per node.
    made = setup_of(TWO_NODES, nodes={"start": "ray"})
    started = plan(made, (12, 8, 8, 8), HOSTS)
    assert (made.server.groups, made.problem.layout.gpus, made.reservation.gpus) == (2, 4, 2)
    assert started.stage_nodes == (0, 0, 1, 1)
    first, second = started.processes
    assert (first.host, second.host) == HOSTS
    for process in started.processes:
        assert process.env["VLLM_PP_LAYER_PARTITION"] == "12,8,8,8"
        assert process.env["VLLM_HOST_IP"] == process.host
        assert value(process.argv, "--nnodes") == "2"
        assert value(process.argv, "--node-rank") == str(process.node)
        assert (value(process.argv, "--master-addr"), value(process.argv, "--master-port")) == ("10.0.0.1", "29600")
        assert value(process.argv, "--distributed-executor-backend") == "mp"
        assert {"VLLM_USE_V2_MODEL_RUNNER", "SGLANG_PP_LAYER_PARTITION", "RANK"} <= set(process.unset)
        assert not set(process.unset) & set(process.env)
    assert (value(first.argv, "--port"), value(first.argv, "--host")) == ("8100", "127.0.0.1")
    assert "--headless" not in first.argv
    assert "--headless" in second.argv
    assert "--port" not in second.argv
    assert started.served_name == "partitune-t1" == value(first.argv, "--served-model-name")
    assert started.url == "http://127.0.0.1:8100"  # who measures stands on the first node


def test_every_flag_that_is_written_is_one_of_the_real_vllm() -> None:
    flags = read_help(recorded("serve_help.txt"), "vllm serve --help=all")
    made = setup_of(
        {**TWO_NODES, "knobs": {"max_num_seqs": [8, 16], "async_scheduling": [True, False]}}, nodes={"start": "ray"}
    )
    flags.check(all_commands(made), "vllm")
    commands = list(all_commands(made))
    assert {value(words, "--max-num-seqs") for words in commands} == {"8", "16"}
    assert {"--async-scheduling", "--no-async-scheduling"} <= {word for words in commands for word in words}
    with pytest.raises(SpecError, match="--no-such-flag"):
        flags.check([("serve", "m", "--no-such-flag", "3")], "vllm")


def test_the_load_is_said_in_words_of_the_real_load_generator() -> None:
    options = set(re.findall(r"--[a-z0-9-]+", recorded("bench_help.txt")))
    made = setup_of({**ONE_NODE, "goodput": {"ttft_ms": 500, "e2e_ms": 9000}, "engine": {"flags": {"tokenizer": "t"}}})
    words = made.loads[0].process(plan(made, (20, 16), ("127.0.0.1",)), seed=3, result="/r/window.json").argv
    assert words[:3] == ("vllm", "bench", "serve")
    assert {word for word in words if word.startswith("--")} <= options
    said = {flag: value(words, f"--{flag}") for flag in ("num-prompts", "seed", "random-input-len", "max-concurrency")}
    assert said == {"num-prompts": "24", "seed": "3", "random-input-len": "160", "max-concurrency": "8"}
    assert (value(words, "--result-dir"), value(words, "--result-filename")) == ("/r", "window.json")
    assert value(words, "--tokenizer") == "t"
    place = words.index("--goodput")
    assert words[place + 1 : place + 3] == ("ttft:500", "e2el:9000")
    fewer = made.loads[0].process(plan(made, (20, 16), ("127.0.0.1",)), seed=9, result="/r/w.json", requests=4).argv
    assert value(fewer, "--num-prompts") == "4"


def test_windows_have_seeds_of_their_own_and_warm_up_has_none_of_theirs() -> None:
    made = setup_of(ONE_NODE, benchmark={"windows": 3, "seed": 5})
    assert made.loads[0].window_seeds == (5, 6, 7)
    assert made.loads[0].warmup_seed not in range(1000)


def test_sglang_on_two_nodes() -> None:
    # SGLang 0.5.23 srt/server_args.py: the same command on each node with its rank; entrypoints/engine.py: contiguous.
    made = setup_of(
        {**TWO_NODES, "engine": {"name": "sglang", "version": "0.5.23"}},
        driver="sglang", nodes={"start": "ray"}, benchmark={"tool": "sglang"},
        engine_command=["/opt/sgl/bin/python", "-m", "sglang.launch_server"],
    )  # fmt: skip
    started = plan(made, (12, 8, 8, 8), HOSTS)
    for process in started.processes:
        assert value(process.argv, "--host") == f"127.0.0.{1 + process.node}"
        assert process.secrets == {}  # it takes a key in its words alone
        assert process.argv[:4] == ("/opt/sgl/bin/python", "-m", "sglang.launch_server", "--model-path")
        assert value(process.argv, "--dist-init-addr") == "10.0.0.1:29600"
        assert value(process.argv, "--node-rank") == str(process.node)
        assert process.env == {"SGLANG_PP_LAYER_PARTITION": "12,8,8,8"}
        assert "VLLM_PP_LAYER_PARTITION" in process.unset
    words = made.loads[0].process(started, seed=1, result="/r/w.jsonl").argv
    assert words[:3] == ("/opt/sgl/bin/python", "-m", "sglang.benchmark.serving")
    # Its lengths are drawn from [ratio x longest, longest]: 1 is a fixed length.
    assert (value(words, "--random-input-len"), value(words, "--random-range-ratio")) == ("160", "1")


def test_sglang_draws_lengths_around_the_same_mean() -> None:
    spread = {"workload": {**LOAD, "range_ratio": 0.25}, "engine": {"name": "sglang", "version": "0.5.23"}}
    made = setup_of({**ONE_NODE, **spread}, driver="sglang", benchmark={"tool": "sglang"})
    words = made.loads[0].words("http://h:1", "n", seed=1, result="/r/w")
    longest, ratio = value(words, "--random-input-len"), value(words, "--random-range-ratio")
    assert longest is not None
    assert ratio is not None
    assert (int(longest), int(int(longest) * float(ratio))) == (200, 120)  # 160 +- 25 %


def test_guidellm_gets_json_that_its_models_take() -> None:
    # guidellm 0.8.1: schemas/data/deserializers/synthetic.py, schemas/benchmark/profiles/concurrent.py.
    made = setup_of({**ONE_NODE, "workload": {**LOAD, "range_ratio": 0.5}}, benchmark={"tool": "guidellm"})
    words = made.loads[0].words("http://h:1", "n", seed=4, result="/r/w.json")
    assert words[0] == "run"
    assert value(words, "--profile") == '{"kind":"concurrent","streams":[8]}'
    assert value(words, "--seed") == '{"kind":"static","value":4}'
    assert '"prompt_tokens_min":80,"prompt_tokens_max":240' in str(value(words, "--data"))


def test_vllms_own_ray_executor_is_one_process_without_our_rank_flags() -> None:
    made = setup_of(TWO_NODES, arguments={"distributed_executor_backend": "ray"})
    (process,) = plan(made, (12, 8, 8, 8), ("127.0.0.1",)).processes
    assert process.argv.count("--distributed-executor-backend") == 1
    assert value(process.argv, "--distributed-executor-backend") == "ray"
    assert "--nnodes" not in process.argv
    # v1/executor/ray_utils.py get_bundles_sorted_by_node: driver first, then by node id, so two are known
    assert plan(made, (12, 8, 8, 8), ("h",)).stage_nodes == (0, 0, 1, 1)
    three = {"cluster": {"nodes": 3, "gpus_per_node": 2, "gpu": "L40S"}, "parallel": {"tp": 2, "pp": 3}}
    unknown = plan(setup_of(three, arguments={"distributed_executor_backend": "ray"}), (12, 12, 12), ("h",))
    assert unknown.stage_nodes is None
    assert "order of Ray's node ids" in unknown.notes[0]


def test_a_secret_reaches_every_process_and_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc123")
    made = setup_of(TWO_NODES, nodes={"start": "ray"}, forward_env=["HF_TOKEN"])
    started = plan(made, (12, 8, 8, 8), HOSTS)
    load = made.loads[0].process(started, seed=1, result="/r/w")
    assert [process.secrets["HF_TOKEN"] for process in (*started.processes, load)] == ["hf_abc123"] * 3
    assert "hf_abc123" not in repr((started, load))
    shown = dry_run_json(DryRun(started, (load,)))
    assert [process["env"]["HF_TOKEN"] for process in (*shown["processes"], *shown["loads"])] == ["***"] * 3
    assert "hf_abc123" not in repr(made)
    assert "hf_abc123" not in str(made.runner.resolved())
    assert pickle.loads(pickle.dumps(made)).forwarded == {"HF_TOKEN": "hf_abc123"}


def test_servers_ask_for_a_random_key_that_stands_on_no_command_line() -> None:
    made = setup_of(TWO_NODES, nodes={"start": "ray"})
    started = plan(made, (12, 8, 8, 8), HOSTS)
    load = made.loads[0].process(started, seed=1, result="/r/w")
    assert len(made.key) >= 32
    assert made.key != setup_of(TWO_NODES, nodes={"start": "ray"}).key
    assert started.key == pickle.loads(pickle.dumps(made)).key == made.key
    assert [dict(process.secrets) for process in (*started.processes, load)] == [
        {"VLLM_API_KEY": made.key}, {}, {"OPENAI_API_KEY": made.key}
    ]  # fmt: skip
    assert ["VLLM_API_KEY" in process.unset for process in started.processes] == [False, True]
    assert made.key not in repr((made, started, load)) + str(dry_run_json(DryRun(started, (load,))))
    # guidellm 0.8.1 schemas/benchmark/entrypoints.py: settings with the prefix GUIDELLM__, nested by __
    tool = setup_of(TWO_NODES, nodes={"start": "ray"}, benchmark={"tool": "guidellm"})
    (name,) = tool.loads[0].process(started, seed=1, result="/r/w").secrets
    assert name == "GUIDELLM__SPEC__BACKEND__API_KEY"


def test_what_runs_in_the_engine_is_found_in_front_of_the_sites_path() -> None:
    made = setup_of(ONE_NODE, env={"PYTHONPATH": "/site/lib"})
    path = plan(made, (20, 16), ("127.0.0.1",)).processes[0].env["PYTHONPATH"]
    ours, site = path.split(":")
    assert (Path(ours) / "partitune_vllm_worker.py").is_file()
    assert site == "/site/lib"
    (process,) = plan(setup_of(ONE_NODE, layer_report=False), (20, 16), ("127.0.0.1",)).processes
    assert "--worker-extension-cls" not in process.argv
    assert "PYTHONPATH" not in process.env


def test_the_engines_own_rules_refuse_a_candidate_before_anything_starts() -> None:
    with pytest.raises(Refused, match="20,15") as caught:
        plan(setup_of(ONE_NODE), (20, 15), ("127.0.0.1",))
    assert caught.value.excess == 1.0


def test_a_path_starts_from_the_runners_folder(tmp_path: Path) -> None:
    made = Runner.from_mapping({"name": "r", "driver": "vllm"}, folder=tmp_path)
    assert made.program(("./bin/vllm", "x")) == (str(tmp_path / "bin" / "vllm"), "x")
    assert made.program(("vllm", "./x")) == ("vllm", "./x")


@pytest.mark.parametrize(
    ("space", "runner", "message"),
    [
        (ONE_NODE, {"driver": "sglang"}, "r.yaml: driver: found sglang, and the search space is for vllm"),
        (TWO_NODES, {}, "r.yaml: nodes.start: found local, and the search space stands on 2 nodes; allowed: ray"),
        (TWO_NODES, {"nodes": {"start": "ray", "hosts": ["a"]}}, "nodes.hosts: found 1 addresses; allowed: 2"),
        (ONE_NODE, {"workers": 2}, "r.yaml: workers: found more than one on this machine"),
        (ONE_NODE, {"arguments": {"port": 3}}, "r.yaml: arguments.port: partitune writes it itself"),
        (ONE_NODE, {"arguments": {"pipeline_parallel_size": 3}}, "arguments.pipeline_parallel_size: partitune writes"),
        (
            ONE_NODE,
            {"env": {"VLLM_PP_LAYER_PARTITION": "1,2"}},
            "r.yaml: env.VLLM_PP_LAYER_PARTITION: partitune writes",
        ),
        (
            {**ONE_NODE, "knobs": {"max_num_seqs": [8, 16]}},
            {"arguments": {"max_num_seqs": 4}},
            "r.yaml: arguments.max_num_seqs: the search space s says it under knobs; allowed: once",
        ),
        (
            {**ONE_NODE, "engine": {"env": {"NCCL_DEBUG": "INFO"}}},
            {"env": {"NCCL_DEBUG": "WARN"}},
            "r.yaml: env.NCCL_DEBUG: the search space s says it under engine.env; allowed: once",
        ),
        ({**ONE_NODE, "engine": {"flags": {"nnodes": 2}}}, {}, "s.yaml: engine.flags.nnodes: partitune writes it when"),
        (
            {**TWO_NODES, "engine": {"flags": {"distributed_executor_backend": "ray"}}},
            {"nodes": {"start": "ray"}},
            "nodes.start: found ray beside distributed_executor_backend ray",
        ),
        (
            {**TWO_NODES, "cluster": {"nodes": 2, "gpus_per_node": 2, "gpu": ["L40S", "L40S", "H100", "H100"]}},
            {"nodes": {"start": "ray"}},
            "r.yaml: nodes.hosts: missing; allowed: the addresses of the nodes in the order of the stages",
        ),
        (
            ONE_NODE,
            {"forward_env": ["NO_SUCH_VARIABLE_HERE"]},
            "forward_env: found NO_SUCH_VARIABLE_HERE, not set here",
        ),
        (ONE_NODE, {"forward_env": ["OPENAI_API_KEY"]}, "forward_env.OPENAI_API_KEY: partitune writes it itself"),
        (
            ONE_NODE,
            {"benchmark": {"arguments": {"seed": 1}}},
            "benchmark.arguments.seed: partitune writes it, from the",
        ),
        (
            {**ONE_NODE, "workload": {**LOAD, "concurrency": None, "request_rate_req_s": 2, "burstiness": 0.5}},
            {"benchmark": {"tool": "sglang"}},
            "r.yaml: benchmark.tool: sglang has only Poisson arrivals, and burstiness is 0.5; allowed: tool vllm",
        ),
        (
            {**ONE_NODE, "goodput": {"ttft_ms": 100}},
            {"benchmark": {"tool": "guidellm"}},
            "benchmark.tool: guidellm counts no good requests; allowed: tool vllm or sglang",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_its_line(
    space: dict[str, object], runner: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-another-server")
    with pytest.raises(SpecError) as caught:
        setup_of(space, **runner)
    assert message in str(caught.value)


def test_a_trace_needs_what_the_real_tool_makes_prompts_of(tmp_path: Path) -> None:
    # vLLM 0.32 benchmarks/datasets/datasets.py TimedTrace: no hash_ids, no prompt.
    trace = tmp_path / "t.jsonl"
    space = {**ONE_NODE, "workload": {"kind": "trace", "file": str(trace)}}
    trace.write_text('{"timestamp": 0, "input_length": 32, "output_length": 4}\n')
    with pytest.raises(SpecError, match="a request has no hash_ids"):
        setup_of(space)
    trace.write_text('{"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [1]}\n')
    with pytest.raises(SpecError, match="timed_trace_chunk_hash_size"):
        setup_of(space)
    made = setup_of(space, benchmark={"arguments": {"timed_trace_chunk_hash_size": 16}})
    words = made.loads[0].words("http://h:1", "n", seed=1, result="/r/w.json")
    assert value(words, "--dataset-path") == str(trace)
    assert words[-1] == "--timed-trace-chunk-hash-size=16"
    line = '{"timestamp": 0, "input_length": 32, "output_length": 4, "hash_ids": [1]%s}\n'
    for more, why in (
        (', "chat_id": %s', "t.jsonl:1: has chat_id, and `vllm bench serve` would send .* its times are in seconds"),
        (', "id": %s, "continues": 1', "t.jsonl:2: has continues, and .* prompts are made from hash_ids alone"),
    ):
        trace.write_text(line % (more % 1).replace(', "continues": 1', "") + line.replace("32", "90") % (more % 2))
        with pytest.raises(SpecError, match=why):
            setup_of(space, benchmark={"arguments": {"timed_trace_chunk_hash_size": 512}})


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"prefix_tokens": 32}, "--dataset-name random --random-input-len 16 .* --random-prefix-len 32"),
        (
            {"prefix_tokens": 32, "prefixes": 4},
            "prefix_repetition --prefix-repetition-prefix-len 32 .*-suffix-len 16 .*-output-len 12 .*-num-prefixes 4 ",
        ),
    ],
)
def test_system_prompts_are_sent_by_the_data_set_that_knows_them(keys: dict[str, int], words: str) -> None:
    load = {**LOAD, "prompt_tokens": 16, "output_tokens": 12, **keys}
    (made,) = setup_of({**ONE_NODE, "workload": load}).loads
    assert re.search(words, " ".join(made.words("http://h:1", "n", seed=1, result="/r/w.json")))
    asked = Asked.of(made)
    assert (asked.prompts, asked.shared_prefix) == ([(48, 48)] * 24, True)
    with pytest.raises(SpecError, match="guidellm sends no prefix_tokens; allowed: tool vllm"):
        setup_of({**ONE_NODE, "workload": load}, benchmark={"tool": "guidellm"})


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"turns": 2}, "benchmark.tool: vllm sends no conversations; allowed: turns: 1, or a simulated search"),
        ({"prefix_tokens": 9, "prefixes": 5}, "vllm sends several system prompts only .*: prefixes a divisor"),
        ({"prefix_tokens": 9, "prefixes": 2, "range_ratio": 0.1}, "only with prompts of one length"),
    ],
)
def test_what_no_load_generator_can_share_is_refused(keys: dict[str, float], message: str) -> None:
    load = {**LOAD, "prompt_tokens": 16, "output_tokens": 12, **keys}
    with pytest.raises(SpecError, match=message):
        setup_of({**ONE_NODE, "workload": load})
