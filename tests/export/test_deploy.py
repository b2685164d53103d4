"""Export: the two files, what each engine makes of them, and what an export never does to a folder."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import partitune
from partitune.candidate import Candidate, FlagValue
from partitune.engines.vllm.launch import VllmLaunch
from partitune.errors import SpecError
from partitune.export.deploy import export
from partitune.planning.problem import Problem
from partitune.planning.resolve import resolve
from partitune.planning.resolved_candidate import ResolvedCandidate
from partitune.spec.search_space import SearchSpace
from tests.env_file_readers import READERS, SHELLS, source
from tests.export.test_env_file import REFUSED, SHELL_OWN

TINY: dict[str, Any] = {
    "kind": "search_space",
    "name": "toy",
    "model": "qwen3-8b",
    "cluster": {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S"},
    "parallel": {"tp": 1, "pp": 2},
    "workload": {"kind": "random", "requests": 4, "prompt_tokens": 64, "output_tokens": 4, "concurrency": 4},
}
K3: dict[str, Any] = {
    **TINY,
    "model": "kimi-k3",
    "cluster": {"nodes": 2, "gpus_per_node": 8, "gpu": "B300"},
    "parallel": {"tp": 2, "pp": 8},
}
K3_DEFAULT = (11, 11, 12, 12, 12, 12, 12, 11)


def problem(base: Mapping[str, Any] = TINY, /, **sections: Any) -> Problem:
    return resolve(SearchSpace.from_mapping({**base, **sections}, source="test.yaml"))


def engine(name: str = "vllm", version: str = "0.33.0", **rest: Any) -> dict[str, Any]:
    return {"name": name, "version": version, **rest}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def vllm_takes(config: Path, *words: str) -> dict[str, Any]:
    """`vllm serve --config` on a few flags: vLLM 0.32 `utils/argparse_utils.py` load_config_file.

    `true` becomes `--key`; `false` becomes `--no-key` only where the parser of `vllm` itself has that option, which it
    never has, so nothing; all else `--key VALUE`. What the command line says comes later and wins.
    """
    serve = argparse.ArgumentParser(exit_on_error=False)
    for name in ("async-scheduling", "enable-prefix-caching", "enable-chunked-prefill"):
        serve.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    serve.add_argument("--headless", action="store_true")
    for name in ("model", "master-addr", "kv-transfer-config", "kv-cache-dtype"):
        serve.add_argument(f"--{name}")
    serve.add_argument("--gpu-memory-utilization", type=float)
    for name in ("pipeline-parallel-size", "tensor-parallel-size", "max-num-batched-tokens", "max-num-seqs",
                 "max-model-len", "nnodes", "node-rank"):  # fmt: skip
        serve.add_argument(f"--{name}", type=int)
    found: list[str] = []
    for key, value in yaml.safe_load(config.read_text()).items():
        if isinstance(value, bool):
            found += [f"--{key}"] if value else []
        else:
            found += [f"--{key}", str(value)]
    return {name: value for name, value in vars(serve.parse_args([*found, *words])).items() if value is not None}


def sglang_takes(config: Path, *words: str) -> dict[str, Any]:
    """`sglang.launch_server --config` on a few flags: SGLang 0.5.23 `srt/utils/server_args_config_parser.py`."""
    server = argparse.ArgumentParser(exit_on_error=False)
    server.add_argument("--model-path", "--model", required=True)
    for name in ("pp-size", "tp-size", "chunked-prefill-size", "nnodes", "node-rank"):
        server.add_argument(f"--{name}", type=int)
    for name in ("enable-mixed-chunk", "enable-dynamic-chunking"):
        server.add_argument(f"--{name}", action="store_true")
    server.add_argument("--dist-init-addr")
    found: list[str] = []
    for key, value in yaml.safe_load(config.read_text()).items():
        found += ([f"--{key}"] if value else []) if isinstance(value, bool) else [f"--{key}", str(value)]
    return {name: value for name, value in vars(server.parse_args([*found, *words])).items() if value is not None}


@pytest.mark.parametrize("asynchronous", [True, False])
def test_vllm_is_told_every_flag_and_off_is_really_off(asynchronous: bool, tmp_path: Path) -> None:
    varied: dict[str, FlagValue] = {
        "async_scheduling": asynchronous,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
    }
    flags = {"gpu_memory_utilization": 0.9, "max_num_batched_tokens": 2048, "max_num_seqs": 64, "kv_cache_dtype": "fp8"}
    done = export(problem(engine=engine(flags=flags)), Candidate((19, 17), varied), tmp_path / "deploy.env", ())
    assert done.config == tmp_path / "deploy.yaml"
    assert vllm_takes(done.config) == {
        "model": "Qwen/Qwen3-8B",
        "pipeline_parallel_size": 2,
        "tensor_parallel_size": 1,
        "gpu_memory_utilization": 0.9,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": 16,  # the candidate's, over the space's
        "kv_cache_dtype": "fp8",
        "async_scheduling": asynchronous,
        "enable_prefix_caching": False,
        "headless": False,
    }
    entries = yaml.safe_load(done.config.read_text())
    assert False not in entries.values()
    assert entries.get("no-async-scheduling") is (None if asynchronous else True)


def test_every_reader_finds_the_partition_and_the_runner(tmp_path: Path) -> None:
    space = problem(K3, engine=engine(version="0.30.0", runner="v1", env={"NCCL_DEBUG": "WARN", "EMPTY": ""}))
    done = export(space, Candidate(K3_DEFAULT, {"VLLM_LOGGING_LEVEL": "INFO"}), tmp_path / "deploy.env", ())
    content = done.env_file.read_bytes()
    wanted = {
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "INFO",
        "VLLM_USE_V2_MODEL_RUNNER": "0",
        "VLLM_PP_LAYER_PARTITION": "11,11,12,12,12,12,12,11",
    }
    assert {name: reader(content) for name, reader in READERS.items()} == dict.fromkeys(READERS, wanted)
    for shell in SHELLS:
        assert source(shell, content, tmp_path) == wanted
    assert b"\r" not in content
    assert content.startswith(b"# written by partitune")


def test_the_engines_own_split_is_written_out_too(tmp_path: Path) -> None:
    space = problem(K3)
    done = export(space, Candidate(space.default_partition), tmp_path / "deploy.env", ("nothing beats the default",))
    lines = done.env_file.read_text().splitlines()
    assert lines[-1] == "VLLM_PP_LAYER_PARTITION=11,11,12,12,12,12,12,11"
    assert "# nothing beats the default" in lines


def test_sglang_gets_its_own_spelling(tmp_path: Path) -> None:
    flags = {"chunked_prefill_size": -1, "enable_mixed_chunk": True, "enable_dynamic_chunking": False}
    space = problem(K3, engine=engine("sglang", "0.5.23", flags=flags))
    done = export(space, Candidate((11, 11, 11, 12, 12, 12, 12, 12)), tmp_path / "deploy.env", ())
    last = done.env_file.read_text().splitlines()[-1]
    assert last == "SGLANG_PP_LAYER_PARTITION=11,11,11,12,12,12,12,12"
    words = shlex.split(done.commands[1].split("; ")[-1])
    assert words[:5] == ["python", "-m", "sglang.launch_server", "--config", str(done.config)]
    assert sglang_takes(done.config, *words[5:]) == {
        "model_path": "moonshotai/Kimi-K3",
        "pp_size": 8,
        "tp_size": 2,
        "chunked_prefill_size": -1,
        "enable_mixed_chunk": True,
        "enable_dynamic_chunking": False,
        "nnodes": 2,
        "node_rank": 1,
        "dist_init_addr": "ADDRESS_OF_NODE_0:20000",
    }


def test_several_nodes_get_a_command_each_and_only_the_first_serves(tmp_path: Path) -> None:
    done = export(problem(K3), Candidate(K3_DEFAULT), tmp_path / "deploy.env", ())
    assert len(done.commands) == 2
    for rank, command in enumerate(done.commands):
        words = shlex.split(command.split("; ")[-1])
        assert words[:4] == ["vllm", "serve", "--config", str(done.config)]
        taken = vllm_takes(done.config, *words[4:])
        assert (taken["nnodes"], taken["node_rank"], taken["headless"]) == (2, rank, rank > 0)
        assert taken["master_addr"] == "ADDRESS_OF_NODE_0"


def test_ray_places_the_workers_from_one_command(tmp_path: Path) -> None:
    space = problem(K3, engine=engine(flags={"distributed_executor_backend": "ray"}))
    (command,) = export(space, Candidate(K3_DEFAULT), tmp_path / "deploy.env", ()).commands
    assert "--nnodes" not in command


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("name", ["deploy.env", "my deploy.env", "it's $HOME.env"])
def test_the_command_finds_the_file_in_a_real_shell(
    shell: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = export(problem(), Candidate((19, 17)), Path(name), ())
    start, _, rest = done.commands[0].partition("vllm serve")
    echo = f'{start} printf "%s\\n" "$VLLM_PP_LAYER_PARTITION" {rest}'
    printed = subprocess.run([shell, "-c", echo], capture_output=True, text=True, check=True).stdout
    assert printed.splitlines() == ["19,17", "--config", str(done.config)]


def test_the_file_says_which_stage_stands_where(tmp_path: Path) -> None:
    lines = export(problem(K3), Candidate(K3_DEFAULT), tmp_path / "x.env", ()).env_file.read_text().splitlines()
    assert "# stage 3: layers 34 to 45 on node 0, GPUs 6 to 7 (B300)" in lines
    assert "# stage 4: layers 46 to 57 on node 1, GPUs 0 to 1 (B300)" in lines
    assert "# stage 7: layers 82 to 92 on node 1, GPUs 6 to 7 (B300)" in lines
    assert not any("CUDA" in line for line in lines)


@pytest.mark.parametrize(
    "cluster",
    [
        {"nodes": 1, "gpus_per_node": 2, "gpu": ["L40S", "H200"]},
        {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S", "reserved_gib": [0, 10]},
    ],
    ids=["types", "reserves"],
)
def test_gpus_that_differ_on_a_node_are_numbered_by_their_slot(cluster: dict[str, Any], tmp_path: Path) -> None:
    # CUDA's own order is by speed, so that the number of a GPU would not be the one nvidia-smi shows.
    space = problem(cluster=cluster)
    text = export(space, Candidate((1, 35)), tmp_path / "x.env", ()).env_file.read_text()
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID\n" in text
    assert "# stage 0: layer 0 on node 0, GPU 0 (L40S)\n" in text
    assert "CUDA_VISIBLE_DEVICES" in text
    own = problem(cluster=cluster, engine=engine(env={"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}))
    assert "ORDER=FASTEST_FIRST\n" in export(own, Candidate((1, 35)), tmp_path / "x.env", ()).env_file.read_text()


def test_a_share_of_memory_that_is_not_free_is_warned_of(tmp_path: Path) -> None:
    cluster = {"nodes": 1, "gpus_per_node": 2, "gpu": "L40S", "reserved_gib": [0, 12]}
    space = problem(cluster=cluster, engine=engine(flags={"gpu_memory_utilization": 0.95}))
    (warning,) = export(space, Candidate((18, 18)), tmp_path / "x.env", ()).warnings
    assert warning.startswith("gpu_memory_utilization 0.95 does not start on stage 1; set 0.")
    most = float(warning.split()[-3])
    assert ResolvedCandidate(space, Candidate((18, 18))).memory[1].utilization_to_set == most
    assert f"# warning: {warning}\n" in (tmp_path / "x.env").read_text()
    heeded = problem(cluster=cluster, engine=engine(flags={"gpu_memory_utilization": most}))
    assert export(heeded, Candidate((18, 18)), tmp_path / "x.env", ()).warnings == ()


def test_one_side_of_a_kv_transfer_is_reminded_of_the_other(tmp_path: Path) -> None:
    transfer = '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}'
    done = export(
        problem(engine=engine(flags={"kv_transfer_config": transfer})), Candidate((18, 18)), tmp_path / "x.env", ()
    )
    assert "the other side must be told this partition too" in done.env_file.read_text()
    assert vllm_takes(done.config)["kv_transfer_config"] == transfer  # JSON goes through the YAML unharmed


def test_a_model_given_as_a_path_is_served_from_its_folder(tmp_path: Path) -> None:
    config = Path(partitune.__file__).parent / "models" / "configs" / "Qwen--Qwen3-8B.json"
    folder = tmp_path / "My Model"
    folder.mkdir()
    (folder / "config.json").write_bytes(config.read_bytes())
    for written in (folder, folder / "config.json"):
        done = export(problem(model=str(written)), Candidate((18, 18)), tmp_path / "x.env", ())
        assert vllm_takes(done.config)["model"] == str(folder)
        assert done.warnings == ()
    (folder / "config.json").rename(folder / "other.json")
    (warning,) = export(problem(model=f"{folder}/other.json"), Candidate((18, 18)), tmp_path / "x.env", ()).warnings
    assert "write the model to serve under model" in warning


@pytest.mark.parametrize(
    ("name", "config"),
    [("deploy.env", "deploy.yaml"), ("deploy", "deploy.yaml"), (".env", ".env.yaml"), ("a.b.env", "a.b.yaml"),
     ("prod.txt", "prod.txt.yaml")],
)  # fmt: skip
def test_the_names_of_the_two_files(name: str, config: str, tmp_path: Path) -> None:
    done = export(problem(), Candidate((18, 18)), tmp_path / name, ())
    assert names_in(tmp_path) == sorted([name, config])  # nothing else stays behind
    assert (done.env_file.name, done.config.name) == (name, config)
    assert name in done.config.read_text().splitlines()[0]


@pytest.mark.parametrize("existing", ["x.env", "x.yaml"])
@pytest.mark.parametrize("content", [b"", b"A=1\n", b"\xff\xfe", b"# not written by partitune\n"])
def test_a_file_that_is_not_ours_stays_and_nothing_is_written(existing: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / existing).write_bytes(content)
    with pytest.raises(SpecError, match=rf"{existing}: exists and was not written by partitune; allowed: another name"):
        export(problem(), Candidate((18, 18)), tmp_path / "x.env", ())
    assert names_in(tmp_path) == [existing]
    assert (tmp_path / existing).read_bytes() == content


def test_an_earlier_export_is_replaced(tmp_path: Path) -> None:
    export(problem(), Candidate((18, 18)), tmp_path / "x.env", ())
    export(problem(), Candidate((19, 17)), tmp_path / "x.env", ())
    assert "PARTITION=19,17\n" in (tmp_path / "x.env").read_text()


NO_PLACES = ["missing/x.env", "file/x.env", "", ".", "pipe", "x.yaml", "x.yml", "n" * 300, "n" * 245, "a\nb", "\udcff"]


@pytest.mark.parametrize("name", NO_PLACES)
def test_a_place_that_cannot_be_written_is_refused_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SpecError, match=r"^export: [^\n]+$"):
        export(problem(), Candidate((18, 18)), Path(name), ())
    assert names_in(tmp_path) == ["file", "pipe"]


def test_a_folder_without_leave_to_write_is_refused(tmp_path: Path) -> None:
    space, user = problem(), os.geteuid()
    tmp_path.chmod(0o500)
    if user == 0:  # root may write anywhere
        os.seteuid(65534)
    try:
        with pytest.raises(SpecError, match=r"cannot be (read|written): Permission denied"):
            export(space, Candidate((18, 18)), tmp_path / "x.env", ())
    finally:
        os.seteuid(user)


@given(
    name=st.one_of(st.sampled_from(SHELL_OWN), st.from_regex(r"_?[A-Z][A-Z0-9_]{0,8}", fullmatch=True)),
    value=st.one_of(st.sampled_from(REFUSED), st.text(max_size=8)),
    varies=st.booleans(),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_whatever_variable_a_space_may_hold_its_export_can_write(
    name: str, value: str, *, varies: bool, tmp_path: Path
) -> None:
    """What no env-file can carry is refused when the space is read, not after the search."""
    domains, fixed = ({"env": {name: [value]}}, {}) if varies else ({}, {name: value})
    try:
        space = problem(engine=engine(env=fixed), knobs=domains)
    except SpecError as error:
        assert f"{'knobs' if varies else 'engine'}.env.{name}" in str(error)  # noqa: PT017 - whether it comes is drawn
        return
    export(space, Candidate((18, 18), {name: value} if varies else {}), tmp_path / "x.env", ())
    assert (f"{name}={value}" in (tmp_path / "x.env").read_text().splitlines()) == bool(value)


def test_a_file_that_reads_back_wrong_leaves_the_older_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    export(problem(), Candidate((18, 18)), tmp_path / "x.env", ())
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def as_people_write_it(self: object, deployment: object) -> dict[str, FlagValue]:
        return {"pipeline-parallel-size": 2, "tensor-parallel-size": 1, "async-scheduling": False}

    monkeypatch.setattr(VllmLaunch, "config_yaml", as_people_write_it)
    with pytest.raises(SpecError, match="read back, the engine would take other values; lost: async_scheduling"):
        export(problem(), Candidate((19, 17), {"async_scheduling": False}), tmp_path / "x.env", ())
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
