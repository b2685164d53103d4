"""What partitune never does, whoever wrote its inputs: run them, follow them elsewhere, keep or show a secret."""

from __future__ import annotations

import ast
from datetime import UTC, datetime
from pathlib import Path

import pytest

import partitune
from partitune.analysis.trial import Trial
from partitune.candidate import Candidate, Outcome, Result
from partitune.cli import main
from partitune.errors import SpecError
from partitune.spec.overrides import parse_settings
from partitune.spec.search_space import SearchSpace
from partitune.store import Store, StudyTerms
from partitune.store.trial_log import log_file, log_trial

PACKAGE = Path(partitune.__file__).parent
TINY = (PACKAGE.parent / "search_spaces" / "tiny.yaml").read_text()
#: `FILE.py:Class` of a runner is a person's own code: the one text that is run.
SITE_DRIVER = PACKAGE / "execution" / "site.py"
SECRETS = ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD", "MY_CREDENTIALS", "TOKEN"]


def calls() -> list[tuple[Path, ast.Call]]:
    return [
        (path, node)
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
    ]


def test_no_text_is_ever_run_and_no_object_is_ever_unpickled() -> None:
    forbidden = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "pickle.load", "pickle.loads"}
    for path, call in calls():
        name = ast.unparse(call.func)
        if path == SITE_DRIVER and name in ("exec", "compile"):
            continue
        assert name not in forbidden, f"{path}: {name}"
        if name.startswith("yaml."):
            assert name.startswith(("yaml.safe_", "yaml.parse", "yaml.dump")), f"{path}: {name}"
        assert not any(word.arg == "shell" for word in call.keywords), f"{path}: {name} with a shell"


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("section", ["engine", "knobs"])
def test_a_secret_variable_is_no_part_of_a_study(name: str, section: str, tmp_path: Path) -> None:
    value = f"{{env: {{{name}: hunter2}}}}" if section == "engine" else f"{{env: {{{name}: [hunter2, hunter3]}}}}"
    lines = [line for line in TINY.splitlines() if not line.startswith(("knobs", "  max_num", "  async"))]
    (tmp_path / "s.yaml").write_text("\n".join([*lines, f"{section}: {value}"]))
    with pytest.raises(SpecError, match=rf"s\.yaml:\d+: {section}\.env\.{name}: holds a secret") as caught:
        SearchSpace.load(str(tmp_path / "s.yaml"))
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize("name", [*SECRETS, "engine.env.HF_TOKEN", "api_key", "engine.flags.hf_token"])
def test_a_secret_on_the_command_line_is_refused_and_not_repeated(name: str) -> None:
    with pytest.raises(SpecError, match="holds a secret") as caught:
        parse_settings([f"{name}=hunter2"])
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["long_prefill_token_threshold", "max_num_batched_tokens", "kv_cache_dtype", "NCCL_DEBUG", "KEYBOARD_X"]
)
def test_what_only_sounds_like_a_secret_is_a_knob(name: str) -> None:
    assert parse_settings([f"{name}=1"])[0] == {name: 1}


@pytest.mark.parametrize("study", ["../../out", "/etc/x", "..", "a/b", "x" * 5000, "ü" * 200, "%2e%2e", "a\\b"])
def test_a_log_stays_in_its_folder_whatever_its_study_is_called(study: str, tmp_path: Path) -> None:
    database = tmp_path / "results.db"
    result = Result(Candidate((1, 1)), Outcome.FAILED, "broke")
    log_trial(database, Trial(study, 0, "default", datetime.now(UTC), result))
    file = log_file(database, study)
    assert file is not None
    assert file.resolve().parent == tmp_path / "results.db.logs"
    assert [one for one in tmp_path.rglob("*") if one.is_file()] == [file]


@pytest.mark.parametrize(
    "text", ["[" * 5000, "{a: " * 3000, "&a [*a]", "!!python/name:os.system", "!!int x", "2026-99-99"]
)
def test_a_value_of_the_command_line_is_a_scalar_or_text(text: str) -> None:
    try:
        flags, _ = parse_settings([f"max_num_seqs={text}"])
    except SpecError as error:
        assert "allowed: one value" in str(error)  # noqa: PT017 - either answer is right, nothing else is
    else:
        assert flags == {"max_num_seqs": text}


@pytest.mark.parametrize("name", ["evil.yaml", "./evil.yaml", "../evil", "/evil.yml"])
def test_a_database_cannot_say_which_code_to_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.yaml").write_text("kind: runner\nname: evil\ndriver: evil.py:Evil\n")
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil:\n    measure = print\n")
    with Store.open("results.db") as store:
        spec = SearchSpace.load("tiny").resolved()
        store.create_study(StudyTerms("s", spec, "vllm", "0.33.0", name, 0, None))
    assert main(["search", "--resume", "s", "--pool", "local", "--quiet"]) == 2
    assert not (tmp_path / "ran").exists()
