"""The command line in one process: one clear message, exit 2 and nothing written; JSON that must not change."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from partitune.cli import main
from partitune.spec.catalog import Kind, shipped
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace

TINY = (shipped(Kind.SEARCH_SPACE) / "tiny.yaml").read_text()
NO_YAML = ("--model", "qwen3-8b", "--gpu", "H200", "--nodes", "1", "--gpus-per-node", "2", "--tp", "1", "--pp", "2")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to stand in, and the signal handlers as they were."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield tmp_path
    for number, handler in before.items():
        signal.signal(number, handler)


class Command:
    """Runs one command and keeps what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """The command's stdout."""
        self._capsys.readouterr()
        try:
            ended = main(arguments)
        except SystemExit as stopped:  # argparse
            ended = int(stopped.code or 0)
        out, self.err = self._capsys.readouterr()
        assert ended == code, self.err
        return out

    def json(self, *arguments: str, code: int = 0) -> Any:
        """The one JSON object on stdout."""
        return json.loads(self(*arguments, "--json", code=code))

    def refused(self, *arguments: str) -> str:
        """The message of a command that does nothing."""
        before = sorted(Path().rglob("*"))
        assert self(*arguments, code=2) == ""
        assert sorted(Path().rglob("*")) == before
        assert "Traceback" not in self.err
        return self.err


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


LOCAL = ("--pool", "local", "--quiet")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("serch",), "invalid choice: 'serch'"),
        (("search",), "--model, --gpu, --nodes, --gpus-per-node: missing"),
        (("search", "--model", "qwen3-8b", "--tp", "1"), "--gpu, --nodes, --gpus-per-node, --pp: missing"),
        (("search", "tinny"), "did you mean tiny?"),
        (("explain", "nosuch/space.yaml"), "nosuch/space.yaml: no such file"),
        (("search", "tiny", "--nodes", "2"), "--nodes: found beside the search space tiny"),
        (("search", "tiny", "--trials", "0"), "--trials: budget.trials: found the number 0; allowed: a whole number"),
        (("search", "tiny", "--trials", "many"), "argument --trials: invalid int value: 'many'"),
        (("search", "tiny", "--seed", "-1"), "--seed: random_seed: found the number -1"),
        (("search", "tiny", "--verbose"), "unrecognized arguments: --verbose"),
        (("search", "tiny", "--pool", "slurm"), "invalid choice: 'slurm'"),
        (("search", "tiny", "--runner", "simulater"), "runner 'simulater': not found, did you mean simulator?"),
        (("search", "tiny", "--runner", "tiny"), "runner 'tiny': not found"),
        (("search", "tiny", "--study", ""), "'' is not a study name"),
        (("search", "tiny", "--study", "a\nb"), "is not a study name"),
        (("search", "tiny", "--ray-address", "here"), "Ray at here cannot be used: 'here' is not an address"),
        (("search", "tiny", "--ray-address", "127.0.0.1:1"), "(--ray-address local), or run without Ray: --pool local"),
        (("search", "tiny", "--ray-address", "h:1", "--pool", "local"), "--ray-address: found beside --pool local"),
        (
            ("search", "tiny", "--set", "engine.name=sglang"),
            "knobs.max_num_batched_tokens: vLLM's name; SGLang has chunked_prefill_size",
        ),
        (("explain", "tiny", "--trace-dir", "none"), "--trace-dir: none/"),
        (("search", *NO_YAML[:-1], "3"), "parallel.pp: tp 1 × pp 3 needs 3 GPUs; allowed: at most 2"),
        (("search", *NO_YAML[:-3], "3", "--pp", "1", "--gpus-per-node", "6"), "tensor parallel size 3 does not divide"),
        (
            ("explain", *NO_YAML[:-1], "40", "--nodes", "20"),
            "parallel.pp: found 40, and the model has 36 layers; allowed",
        ),
        (
            ("explain", "tiny", "--set", "workload.kind=trace"),
            "partitune: --set: workload.file: missing; allowed: the pa",
        ),
        (("explain", *NO_YAML, "--model", "qwen-8b"), "nearest: qwen3-8b"),
        (("explain", *NO_YAML, "--model", "./no/config.json"), "no such file"),
        (("explain", *NO_YAML, "--model", ""), "model: found the text ''"),
        (("explain", *NO_YAML, "--gpu", "H2000"), "cluster.gpu: 'H2000' is not known; did you mean H200"),
        (("explain", *NO_YAML, "--nodes", "0"), "cluster.nodes: found the number 0"),
        (("studies",), "results.db: no such file. `partitune search` creates it"),
        (("pareto",), "results.db: no such file"),
        (("show", "tiny"), "results.db: no such file"),
        (("export",), "the following arguments are required: -o/--output"),
        (("export", "-o", "deploy.env"), "results.db: no such file"),
        (("search", "tiny", "--db", ""), "'' is not a file name"),
        (("search", "tiny", "--db", "."), "is a folder"),
        (("search", "tiny", "--db", "no/such/results.db"), "does not exist"),
        (("search", "tiny", "--db", "mysql://host/name"), "mysql is not supported. Allowed: sqlite, postgresql"),
        (("list", "more"), "unrecognized arguments: more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_wrong_arguments(command: Command, arguments: tuple[str, ...], said: str) -> None:
    assert said in command.refused(*arguments)


def test_another_kind_of_load_forgets_the_keys_of_the_one_before(command: Command) -> None:
    refused = command.refused("explain", "tiny", "--set", "workload.kind=trace")
    assert len(refused.splitlines()) == 1  # prompt_tokens and the like, which nobody wrote, are not complained about
    refused = command.refused("explain", "tiny", "--set", "workload.file=t.jsonl", "--set", "workload.kind=trace")
    assert "t.jsonl: cannot read the trace" in refused


def test_a_very_large_load_says_what_it_will_take_and_others_do_not(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "tiny", "--set", "workload.requests=50000", "--set", "workload.output_tokens=2"]) == 0
    assert capsys.readouterr().err.startswith("this load has 50000 requests: by its first 2000, which took 0.")
    assert main(["explain", "tiny"]) == 0
    assert capsys.readouterr().err == ""


#: What vLLM's int() takes or stumbles over (field report 15), and sums and counts that do not fit 2 stages, 36 layers.
PARTITIONS = {
    "": "is empty",
    "0,36": "every stage needs at least 1 layer",
    "36,0": "every stage needs at least 1 layer",
    "-1,37": "negative number",
    "1_8,18": "underscore",
    "+18,18": "plus sign",
    " 18, 18": "white space",
    "18,18\n": "white space",
    "18,18,": "ends with a comma",
    '"18,18"': "quotes",
    "18，18": "full-width",
    "18,18 # note": "comment",
    "[18,18]": "brackets",
    "18;18": "character ';'",
    "1e1,26": "character 'e'",
    "١٨,١٨": "character",
    "36": "has 1 entry, the pipeline has 2 stages",
    "12,12,12": "has 3 entries, the pipeline has 2 stages",
    "18,17": "sums to 35, the model has 36 layers: 1 too few",
    "99999999999999999999999999,1": "26 digits",
}


@pytest.mark.parametrize(("text", "said"), PARTITIONS.items(), ids=map(repr, PARTITIONS))
def test_wrong_partitions(command: Command, text: str, said: str) -> None:
    assert said in command.refused("explain", "tiny", f"--partition={text}")


SETTINGS = {
    "max_num_seqs": "allowed: name=value",
    "=3": "allowed: name=value",
    "max_num_seqs=": "allowed: name=value",
    "max_num_seq=3": "did you mean max_num_seqs?",
    "max-num-seqs=64": "write it max_num_seqs",
    "max_num_seqs=0": "out of range, allowed is >= 1",
    "max_num_seqs=1.5": "is not an integer",
    "max_num_seqs=many": "is not an integer",
    "max_num_seqs=[1, 2]": "is not an integer",
    "max_num_seqs={a: b": "allowed: one value",
    "max_num_seqs=99999999999999999999": "beyond 64 bits",
    "gpu_memory_utilization=.nan": "is nan",
    "gpu_memory_utilization=1.5": "out of range",
    "async_scheduling=maybe": "is not true or false",
    "kv_cache_dtype=fp9": "is not one of",
    "engine.versio=0.30.0": "did you mean version?",
    "engine.version=latest": "allowed: a released version",
    "engine.name=vlm": "'vlm' is not a known engine",
    "engine.runner=v3": "allowed: auto",
    "engine=vllm": "engine: found the text 'vllm'; allowed: a mapping",
    "modle.name=x": "modle: unknown key, did you mean model?",
    "model=qwen-8b": "nearest: qwen3-8b",
    "parallel.pp=37": "needs 37 GPUs",
    "seeds.0=18,18": "there is no such key",
    "VLLM_PP_LAYER_PARTITION=3,33": "allowed: seeds, knobs.partition or --partition",
    "tensor_parallel_size=2": "allowed: parallel.tp",
    "engine.flags.pipeline_parallel_size=4": "allowed: parallel.pp",
    "engine.env.VLLM_USE_V2_MODEL_RUNNER=1": "allowed: engine.runner",
}


@pytest.mark.parametrize(("text", "said"), SETTINGS.items(), ids=SETTINGS)
def test_wrong_settings(command: Command, text: str, said: str) -> None:
    assert said in command.refused("explain", "tiny", "--set", text)


def test_a_setting_given_twice(command: Command) -> None:
    said = command.refused("explain", "tiny", "--set", "max_num_seqs=3", "--set", "max_num_seqs=4")
    assert said == "partitune: --set max_num_seqs: given twice; allowed: once\n"


def test_a_setting_may_name_a_key_without_dots(command: Command) -> None:
    """`model` is a flag of the engine too; the key of the space is what a person means."""
    changed = command.json("explain", "tiny", "--set", "model=llama-3.1-8b", "--set", "random_seed=7")
    assert changed["partition"] == [16, 16]
    assert changed["knobs"] == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("model: qwen3-8b", "modle: qwen3-8b", "space.yaml:7: modle: unknown key, did you mean model?"),
        ("model: qwen3-8b", "model: qwen-8b", "space.yaml:7: model: model 'qwen-8b' is not in the catalog"),
        ("gpu: L40S", "gpu: L400", "space.yaml:8: cluster.gpu: 'L400' is not known; did you mean L40 or L40S"),
        ("pp: 2", "pp: 40", "space.yaml:9: parallel.pp: tp 1 × pp 40 needs 40 GPUs"),
        ("[256, 512", "[0, 512", "space.yaml:12: knobs.max_num_batched_tokens: 0 is out of range"),
        ("async_scheduling:", "async_schedule:", "space.yaml:13: knobs.async_schedule: vLLM 0.33.0 has no such flag"),
        ("18,18", "18,19", "space.yaml:15: seeds[0]: found a sum of 37, 1 too many"),
        ("18,18", "12,12,12", "space.yaml:15: seeds[0]: found 3 stages; allowed: 2 stages"),
        ("18,18", "1_8,18", "space.yaml:15: seeds[0]"),
        ("trials: 12", "trials: none", "space.yaml:17: budget.trials"),
        ("kind: search_space", "kind: runner", "space.yaml:3: kind: found a runner"),
    ],
)  # fmt: skip
def test_a_fault_in_a_file_is_named_by_its_line(command: Command, old: str, new: str, said: str) -> None:
    Path("space.yaml").write_text(TINY.replace(old, new, 1))
    assert said in command.refused("search", "space.yaml", *LOCAL)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "space.yaml:1: the file is empty"),
        (b"- a\n", "space.yaml:1: the file holds a list"),
        (b"model: x\n  bad: [", "space.yaml:2: not readable as YAML"),
        (TINY.encode("utf-16"), "space.yaml:1: found UTF-16"),
    ],
)
def test_files_that_are_no_search_space(command: Command, content: bytes, said: str) -> None:
    Path("space.yaml").write_bytes(content)
    assert said in command.refused("search", "space.yaml")


def test_a_database_that_is_none(command: Command, here: Path) -> None:
    (here / "notes.txt").write_text("hello")
    assert "not an SQLite database" in command.refused("search", "tiny", *LOCAL, "--db", "notes.txt")
    assert (here / "notes.txt").read_text() == "hello"


def test_a_search_ends_with_one_json_object(command: Command) -> None:
    """The contract of issue 2: keys may be added, never renamed."""
    found = command.json("search", "tiny", "--pool", "local", "--trials", "4")
    assert {"study", "db", "trials", "default", "best", "pareto"} <= found.keys()
    assert (found["study"], found["db"]) == ("tiny", "results.db")
    assert found["trials"] == {"ok": 4, "infeasible": 0, "failed": 0, "invalid": 0, "lost": 0}
    for one in (found["default"], found["best"], *found["pareto"]):
        assert {"trial", "partition", "knobs", "metrics", "outcome", "reason"} <= one.keys()
        assert sum(one["partition"]) == 36
        assert one["metrics"]["output_throughput_tok_s"] > 0
        assert (one["outcome"], one["reason"]) == ("ok", "")
    assert found["default"]["trial"] == 0
    assert found["default"]["partition"] == [18, 18]
    assert "trial 0 (default:default)" in command.err  # progress goes to stderr


def test_quiet_says_nothing_on_stderr(command: Command) -> None:
    assert command.json("search", "tiny", *LOCAL, "--trials", "2")["trials"]["ok"] == 2
    assert command.err == ""


def test_explain_prints_the_agreed_object(command: Command) -> None:
    """The contract of issue 2: keys may be added, never renamed."""
    found = command.json("explain", "tiny")
    assert {"partition", "regime", "metrics", "stages", "kv", "limiting_stage"} <= found.keys()
    assert set(found["metrics"]) >= {
        "output_throughput_tok_s", "total_throughput_tok_s", "ttft_p50_ms", "ttft_p99_ms", "tpot_p50_ms",
        "tpot_p99_ms", "makespan_s",
    }  # fmt: skip
    wanted = {
        "stage", "layers", "compute_s", "transfer_s", "wait_s", "busy_fraction", "weights_bytes", "free_bytes",
        "kv_blocks", "stranded_bytes",
    }  # fmt: skip
    assert all(wanted <= stage.keys() for stage in found["stages"])
    assert [stage["stage"] for stage in found["stages"]] == [0, 1]
    assert set(found["kv"]) == {"num_blocks", "tokens"}
    assert found["kv"]["num_blocks"] == min(stage["kv_blocks"] for stage in found["stages"])
    assert found["limiting_stage"] in (0, 1)
    for stage in found["stages"]:
        times = stage["compute_s"] + stage["transfer_s"] + stage["wait_s"]
        assert times == pytest.approx(found["metrics"]["makespan_s"], rel=0.02)


def test_explain_of_what_cannot_run_has_the_same_keys_and_says_why(command: Command) -> None:
    runs = command.json("explain", "tiny")
    found = command.json("explain", "tiny", "--set", "cluster.reserved_gib=40", code=1)
    assert found["outcome"] == "infeasible"
    assert "GiB" in found["reason"]
    assert runs.keys() == found.keys()
    assert runs["stages"][0].keys() == found["stages"][0].keys()
    assert all(value is None for value in found["metrics"].values())


def test_a_search_without_anything_that_runs_says_why(command: Command) -> None:
    reserved = ("--set", "cluster.reserved_gib=40")
    out = command("search", "tiny", *LOCAL, *reserved, code=1)
    assert "trials: 1 infeasible (the model fits nowhere in this space: " in out
    assert "weights miss the card by" in out
    assert "why: no trial can be deployed: every one failed or missed a limit" in out
    found = command.json("search", "tiny", *LOCAL, *reserved, code=1)
    assert (found["best"], found["pareto"]) == (None, [])
    assert found["default"]["outcome"] == "infeasible"
    assert "nothing to export: no trial can be deployed" in command.refused("export", "-o", "deploy.env")


def test_every_command_reads_what_a_search_left(command: Command) -> None:
    best = command.json("search", "tiny", *LOCAL)["best"]
    assert [(one["study"], one["state"]) for one in command.json("studies")] == [("tiny", "finished")]
    front = command.json("pareto")
    assert {"study", "pareto", "hypervolume", "not_ok"} <= front.keys()
    assert front["hypervolume"] > 0
    assert command.json("show", "tiny", "--trial", str(best["trial"]))["partition"] == best["partition"]
    assert len(command("pareto", "--csv").splitlines()) == 13
    assert "tiny" in command("studies")
    assert "19,17" in command("show")
    assert "no such trial; it has 0 to 11" in command.refused("show", "--trial", "99")
    assert "no study tinny. Did you mean tiny?" in command.refused("pareto", "tinny")
    command("export", "-o", "deploy.env")
    vector = ",".join(map(str, best["partition"]))
    assert f"VLLM_PP_LAYER_PARTITION={vector}\n" in Path("deploy.env").read_text()


def test_a_finished_study_is_not_run_again_and_more_trials_go_on(command: Command) -> None:
    first = command.json("search", "tiny", *LOCAL, "--trials", "5")
    again = command.json("search", "tiny", "--pool", "local", "--trials", "5")
    assert "trial" not in command.err  # nothing was measured
    assert again["trials"] == first["trials"]
    more = command.json("search", "tiny", *LOCAL, "--trials", "8")
    assert more["trials"]["ok"] == 8


def test_another_spec_under_the_same_name_names_what_changed(command: Command) -> None:
    command("search", "tiny", *LOCAL, "--trials", "2")
    said = command.refused("search", "tiny", *LOCAL, "--set", "workload.requests=20", "--seed", "3")
    assert "the study tiny was started with another spec" in said
    assert "workload.requests: 16 -> 20" in said
    assert "random_seed: 0 -> 3" in said
    assert "tiny-2" in said
    command("search", "tiny", *LOCAL, "--trials", "2", "--set", "workload.requests=20", "--study", "tiny-2")
    assert [one["study"] for one in command.json("studies")] == ["tiny", "tiny-2"]


def test_the_form_without_a_file_takes_a_name_or_a_config(command: Command, here: Path) -> None:
    named = command.json("search", *NO_YAML, *LOCAL, "--trials", "2")
    assert named["study"] == "qwen3-8b-pp2-tp1"
    (here / "My Model").mkdir()
    config = files("partitune.models").joinpath("configs", "Qwen--Qwen3-8B.json").read_bytes()
    (here / "My Model" / "config.json").write_bytes(config)
    for path in ("./My Model", "My Model/config.json"):
        explained = command.json("explain", *NO_YAML, "--model", path)
        assert explained["metrics"] == command.json("explain", *NO_YAML)["metrics"]
    assert command.json("search", *NO_YAML, "--model", "./My Model", *LOCAL, "--trials", "1")["study"] == (
        "my-model-pp2-tp1"
    )


def test_unequal_gpus_and_reserved_memory(command: Command) -> None:
    space = TINY.replace("gpu: L40S", "gpu: [L40S, RTX-3090], reserved_gib: [0, 4]")
    Path("two.yaml").write_text(space)
    found = command.json("explain", "two.yaml")
    assert [stage["gpu"] for stage in found["stages"]] == ["L40S", "RTX-3090"]
    best = command.json("search", "two.yaml", *LOCAL)["best"]
    assert best["partition"][0] > best["partition"][1]
    Path("three.yaml").write_text(TINY.replace("gpu: L40S", "gpu: [L40S, L40S, L40S]"))
    assert "three.yaml:8: cluster.gpu: found a list of 3" in command.refused("search", "three.yaml")


def test_schema_prints_what_an_editor_checks_a_file_with(command: Command) -> None:
    for name, model in (("search-space", SearchSpace), ("runner", Runner)):
        schema = json.loads(command("schema", name))
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert set(schema["properties"]) == set(model.model_fields)
    assert "invalid choice: 'searchspace'" in command.refused("schema", "searchspace")


def test_help_is_instant() -> None:
    """Nothing that costs most of a second is imported before a command is known."""
    script = """
import sys
from partitune.cli import main
try:
    main(["--help"])
finally:
    heavy = {"ray", "optuna", "sqlalchemy", "pydantic", "numpy", "rich", "yaml"} & set(sys.modules)
    print(sorted(heavy), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"
    assert "partitune search tiny" in done.stdout
