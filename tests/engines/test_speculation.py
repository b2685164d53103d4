"""Whoever asks for speculative decoding is told that the simulator does not have it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from partitune.analysis.explanation import candidate_of, explain
from partitune.cli import main
from partitune.engines.registry import ENGINES
from partitune.engines.sglang.coverage import SGLANG_COVERAGE
from partitune.engines.sglang.flags import SGLANG_FLAGS
from partitune.engines.vllm.coverage import VLLM_COVERAGE
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.engines.vllm.rules import draft_method
from partitune.planning.resolve import resolve
from partitune.spec.search_space import SearchSpace

VLLM, SGLANG = (ENGINES[name].launch for name in ("vllm", "sglang"))


def test_every_flag_of_the_engines_that_asks_for_it_is_known() -> None:
    # vLLM 0.32 engine/arg_utils.py: --speculative-config, --spec-method, --spec-model, --spec-tokens.
    for name in ("speculative_config", "spec_method", "spec_model", "spec_tokens"):
        assert name in VLLM_FLAGS
        assert name in VLLM.drafting_flags
        assert "launched and not simulated" in VLLM_COVERAGE[name].why
    assert "speculative_algorithm" in SGLANG_FLAGS
    assert SGLANG.drafting_flags == ("speculative_algorithm",)
    assert "launched and not simulated" in SGLANG_COVERAGE["speculative_algorithm"].why


@pytest.mark.parametrize(
    ("space", "flags", "counted"),
    [
        ("llama-70b-pp4", {"speculative_config": '{"method": "ngram", "num_speculative_tokens": 3}'}, "none of it"),
        ("llama-70b-pp4", {"spec_model": "some/drafter", "spec_tokens": 3}, "none of it"),
        ("llama-70b-pp4", {"spec_method": "eagle3", "spec_model": "x"}, "the embedding that it reads"),
        ("deepseek-v3-pp4-tp8", {"spec_method": "mtp"}, "its weights on the last stage, and not its KV"),
        ("deepseek-v3-pp4-tp8", {"spec_method": "deepseek_mtp"}, "its weights on the last stage, and not its KV"),
    ],
)
def test_explain_says_so_and_what_of_the_memory_is_counted(space: str, flags: dict[str, str], counted: str) -> None:
    posed = resolve(SearchSpace.load(space))
    explained = explain(posed, candidate_of(posed, None, flags))
    (note,) = [one for one in explained.notes if "speculative" in one]
    assert set(explained.caveats.not_modelled) == set(flags)
    assert note.partition("memory is counted: ")[2].startswith(counted)
    assert not [one for one in explain(posed, candidate_of(posed, None, {})).notes if "speculative" in one]


def test_old_names_of_mtp_mean_mtp() -> None:
    # vLLM 0.32 config/speculative.py: MTPModelTypes are "deprecated and replaced with mtp".
    assert {draft_method({"spec_method": name}) for name in ("mtp", "deepseek_mtp", "kimi_k3_mtp")} == {"mtp"}
    assert draft_method({"speculative_config": '{"method": "qwen3_next_mtp"}'}) == "mtp"
    assert draft_method({"spec_method": "ngram"}) == "ngram"


def test_a_simulated_search_that_varies_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = SearchSpace.load("tiny").resolved()
    plain["name"] = "drafting"
    plain["knobs"] = {"spec_method": ["ngram", "suffix"]}
    (tmp_path / "s.yaml").write_text(json.dumps(plain))
    assert main(["search", "s.yaml", "--pool", "local", "--trials", "1"]) == 2
    said = capsys.readouterr()
    assert "knobs.spec_method: the simulator cannot tell its values apart" in said.err
    assert "drafting is launched and not simulated" in said.err
    plain["knobs"], plain["engine"]["flags"] = {}, {"spec_method": "ngram"}
    (tmp_path / "s.yaml").write_text(json.dumps(plain))
    assert main(["search", "s.yaml", "--pool", "local", "--trials", "1"]) == 0
    said = capsys.readouterr()
    assert "not modelled: spec_method: drafting is launched" in said.out
    assert "not modelled: spec_method: drafting is launched" in said.err
    assert main(["search", "tiny", "--pool", "local", "--trials", "1"]) == 0
    said = capsys.readouterr()
    assert "not modelled" not in said.out + said.err
