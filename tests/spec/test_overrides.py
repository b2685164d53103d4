"""`--set` and its kin over a file: a key found wrong later is looked for where a person wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from partitune.cli import main
from partitune.errors import SpecError
from partitune.spec.commands import words_of
from partitune.spec.overrides import parse_settings, with_settings
from partitune.spec.search_space import SearchSpace

FILE = """kind: search_space
name: s
model: kimi-k3
cluster: {nodes: 1, gpus_per_node: 2, gpu: RTX-4090}
parallel:
  layouts: auto
"""
SMALL = ("--set", "model=qwen3-8b")  # which fits


@pytest.mark.parametrize(
    ("typed", "place"),
    [
        (
            ("--trials", "3"),
            "s.yaml:6: parallel.layouts: no layout can be used here: not tp1-pp1-dp2, tp1-pp1-dp2-ep2: ",
        ),
        (("--seed", "3", "--set", "model=llama-3.1-405b"), "s.yaml:6: parallel.layouts: no layout can be used here"),
        ((*SMALL, "--set", "engine.flags.nosuch=3"), "--set: engine.flags.nosuch: vLLM 0.33.0 has no such flag"),
        (
            (*SMALL, "--set", "engine.flags.nosuch=3", "--trials", "3"),
            "--set: engine.flags.nosuch: vLLM 0.33.0 has no such",
        ),
        (("--trials", "0"), "--trials: budget.trials: "),
    ],
)
def test_a_fault_that_is_found_late_names_the_file_and_not_the_last_argument(
    typed: tuple[str, ...], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(FILE)
    assert main(["search", str(file), *typed, "--pool", "local", "--db", str(tmp_path / "r.db")]) == 2
    assert place in capsys.readouterr().err


def test_without_a_file_it_is_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    space = ("--model", "kimi-k3", "--gpu", "RTX-4090", "--nodes", "1", "--gpus-per-node", "2")
    assert main(["search", *space, "--trials", "3", "--pool", "local", "--db", str(tmp_path / "r.db")]) == 2
    assert "command line: parallel.layouts: no layout can be used here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("knobs.kv_cache_dtype=[auto, fp8]", {"kv_cache_dtype": ["auto", "fp8"]}),
        ("knobs={max_num_seqs: [16, 64]}", {"max_num_seqs": [16, 64]}),
    ],
)
def test_a_list_or_a_mapping_of_the_search_space_means_what_it_means_in_the_file(
    typed: str, found: dict[str, object]
) -> None:
    flags, keys = parse_settings([typed])
    assert not flags
    knobs = with_settings(SearchSpace.load("tiny"), keys).resolved()["knobs"]
    assert {name: knobs[name] for name in found} == found


def test_what_the_engine_reads_stays_the_text_that_was_typed() -> None:
    json = '{"enable_return_routed_experts": true}'
    flags, keys = parse_settings([f"additional_config={json}", f"engine.flags.additional_config={json}"])
    assert flags == {"additional_config": json}
    assert keys == {"engine.flags.additional_config": json}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("objectives=[output_throughput_tok_s", "--set: objectives: not readable as YAML"),
        ("objectives=[nosuch]", "--set: objectives[0]: "),
        ("knobs.max_num_seqs=[yes]", "--set: knobs.max_num_seqs[0]: "),
        ("objectives=&a [*a]", "--set: objectives: "),
        ("objectives=[&a [1], *a, *b]", "names no anchor"),
        ("objectives=[kv_tokens]\nbudget: {}", "allowed: one value in one line"),
        ("workload.cohorts={a: 1}", "--set: workload"),
        ("knobs.max_num_seqs=" + "[" * 5000, "--set: knobs.max_num_seqs: nested deeper than 20 levels"),
    ],
)
def test_a_list_that_is_none_is_one_message(typed: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        with_settings(SearchSpace.load("tiny"), parse_settings([typed])[1])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_list_that_was_set_is_set_by_the_printed_command() -> None:
    space = with_settings(SearchSpace.load("tiny"), {"cluster.gpu": ["RTX-5090", "RTX-3090"]})
    words = words_of(space)
    assert words == ("tiny", "--set", 'cluster.gpu=["RTX-5090", "RTX-3090"]')
    assert with_settings(SearchSpace.load("tiny"), parse_settings([words[2]])[1]).resolved() == space.resolved()
