"""Whatever a file, a flag, a log or a database holds: it is read, or refused with one of our errors. Nothing else.

Every test draws 30 inputs; `--hypothesis-profile=full` draws 2,000 each: 16,000.
"""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.analysis.final import DecisionRules, FinalRun
from partitune.candidate import Objective
from partitune.engines.vllm.kv_recording import KvRecord
from partitune.engines.vllm.scheduler.recording import Recording
from partitune.errors import PartituneError, SpecError
from partitune.export.env_file import parse, render
from partitune.jobs.home import Home
from partitune.models.reader import load_architecture
from partitune.partition import Partition, parse_partition
from partitune.planning.resolve import resolve
from partitune.search.space import Space
from partitune.simulation.trace import read_trace
from partitune.spec.overrides import parse_settings, with_settings
from partitune.spec.search_space import SearchSpace
from partitune.store import Store
from partitune.store.status import look, stored_summary
from tests.store_examples import filled, ok, record_repeat, record_screened
from tests.strategies import json_values

ROOT = Path(__file__).parent.parent.parent
TINY = (ROOT / "search_spaces" / "tiny.yaml").read_text()

#: Scalars as people, broken tools and attackers write them.
SCALARS = st.one_of(
    st.sampled_from(
        [
            "", "~", "null", "true", "0", "-1", "1e999", ".inf", ".nan", "1_0", "0x10", "9" * 40, "2026-01-01", "=",
            "<<", "*a", "&a [1]", "!!python/object/apply:os.system ['true']", "!!binary aGk=", "[]", "{}", "[" * 3000,
            "{a: {b: 1}}", "18,18", "18, 18", "18，18", "-1,37", "'", '"', "|", ">", "%", "@", "`", "\t", "\u2028",
            "\ufeff", "\x00", "../../etc/passwd", "/dev/zero", "/proc/self/mem", "file:///etc/passwd", "$(true)",
            ";true", "a" * 3000,
        ]
    ),
    st.text(max_size=40),
    st.integers().map(str),
    st.floats().map(str),
)  # fmt: skip
JSON = json_values(st.text(max_size=10), keys=st.text(max_size=10))


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@st.composite
def broken_yaml(draw: st.DrawFn) -> str:
    """A good search space with some lines or values replaced, doubled, cut or moved; or no search space at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.text(max_size=300))
    lines = TINY.splitlines()
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[at].partition(":")
        change = draw(st.integers(0, 4))
        if change == 0:
            lines[at] = f"{key}{colon} {draw(SCALARS)}"
        elif change == 1:
            lines.insert(at, lines[draw(st.integers(0, len(lines) - 1))])
        elif change == 2 and len(lines) > 1:
            del lines[at]
        elif change == 3:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        else:
            lines[at] = " " * draw(st.integers(0, 4)) + lines[at].replace("2", draw(st.sampled_from("013589")), 1)
    return "\n".join(lines)


@given(broken_yaml())
def test_search_spaces(folder: Path, text: str) -> None:
    file = folder / "space.yaml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    with suppress(PartituneError):
        spec = SearchSpace.load(str(file))
        assert SearchSpace.from_mapping(spec.resolved(), source="again").resolved() == spec.resolved()
        problem = resolve(spec)
        Space(problem, spec)


@given(st.one_of(SCALARS, st.lists(st.integers(-2, 40).map(str) | SCALARS, max_size=5).map(",".join)))
def test_vectors(text: str) -> None:
    with suppress(SpecError):
        found = parse_partition(text, stages=2, layers=36)
        assert sum(found) == 36
        assert parse_partition(Partition(found).text, stages=2, layers=36) == found


@given(
    st.lists(
        st.tuples(st.sampled_from(["engine.version", "budget.trials", "a.b", "max_num_seqs", "model", ""]), SCALARS)
    )
)
def test_settings_of_the_command_line(pairs: list[tuple[str, str]]) -> None:
    with suppress(SpecError):
        _, keys = parse_settings([f"{name}={value}" for name, value in pairs])
        with_settings(SearchSpace.load("tiny"), keys)


@given(
    st.sampled_from(["trace", "schedules", "kv", "config"]),
    st.one_of(JSON.map(json.dumps), st.text(max_size=60), JSON.map(lambda value: json.dumps([value]) * 2)),
    st.sampled_from(["", "\n", "\ufeff", "x"]),
)
def test_json_files(folder: Path, kind: str, text: str, around: str) -> None:
    model = folder / "model"
    model.mkdir(exist_ok=True)
    file = model / "config.json"
    file.write_bytes((around + text + around).encode("utf-8", "surrogatepass"))
    readers: dict[str, Callable[[Path], object]] = {"trace": read_trace, "schedules": Recording.read}
    readers |= {"kv": KvRecord.read, "config": load_architecture}
    with suppress(PartituneError):
        readers[kind](file)


@given(
    st.text(max_size=80) | st.lists(st.tuples(st.text(max_size=8), SCALARS).map("=".join)).map("\n".join),
    st.dictionaries(st.text(max_size=6), SCALARS),
)
def test_env_files(text: str, variables: dict[str, str]) -> None:
    with suppress(SpecError):
        parse(text, "a.env")
    with suppress(SpecError):
        written = render(variables, [text])
        assert parse(written, "a.env") == {name: value for name, value in variables.items() if value}


@given(
    st.lists(st.text(max_size=60) | st.binary(max_size=60).map(lambda raw: f"@partitune {raw.hex()}"), max_size=4), JSON
)
def test_lines_of_a_jobs_log(lines: list[str], value: Any) -> None:
    home = Home()
    for line in lines:
        with suppress(PartituneError):
            home.take(line + "\n")
    packed = base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()
    with suppress(PartituneError):
        home.take(f"@partitune {packed}\n")


CELLS = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    JSON.map(json.dumps),
)
COLUMNS = {
    "partitune_studies": ["name", "created_at", "finished_at", "state", "spec", "engine", "random_seed", "revision"],
    "partitune_trials": [
        "number", "revision", "partition", "knobs", "digest", "origin", "outcome", "reason", "simulated", "metrics",
        "measurement",
        "constraints", "started_at", "finished_at", "duration_s",
    ],
    "partitune_stages": ["stage", "layers", "kinds", "compute_s", "wait_s", "weights_bytes", "kv_blocks"],
    "partitune_migrations": ["name", "applied_at"],
    "partitune_screened": ["revision", "origin", "partition", "knobs", "outcome", "reason", "metrics", "measurement"],
    "partitune_repeats": ["revision", "trial", "phase", "repeat", "finished_at", "outcome", "metrics", "duration_s"],
}  # fmt: skip
OBJECTIVES = (Objective("output_throughput_tok_s", "maximize"), Objective("ttft_p99_ms", "minimize"))


@pytest.fixture(scope="module")
def database(folder: Path) -> Path:
    path = filled(folder / "whole.db")
    with Store.open(path) as store:
        for number in range(3):
            record_screened(store, "k3", "sampler:0", ok(knob=number))
            record_repeat(store, "k3", FinalRun("verdict", 1 + number, 0), ok(knob=number))
    return path


@given(st.sampled_from([(t, c) for t, columns in COLUMNS.items() for c in columns]), CELLS, st.integers(1, 3))
def test_cells_of_a_database(folder: Path, database: Path, place: tuple[str, str], value: Any, row: int) -> None:
    broken = folder / "broken.db"
    for old in folder.glob("broken.db*"):
        old.unlink()
    shutil.copy(database, broken)
    connection = sqlite3.connect(broken)
    table, column = place
    with suppress(sqlite3.IntegrityError, UnicodeEncodeError):
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (value, row))
        connection.commit()
    connection.close()
    with suppress(PartituneError), Store.open(broken, read_only=True) as store:
        for study in store.studies():
            store.trials(study.name)
            store.set_aside(study.name), store.next_number(study.name), store.repeats(study.name)
            summary = stored_summary(store, study.name, OBJECTIVES, DecisionRules())
            summary.to_csv(), summary.pareto_json(), summary.to_json(), summary.volume()
            look(store, study.name, OBJECTIVES, 10).to_text()


@given(st.integers(0, 60_000), st.binary(min_size=1, max_size=64))
def test_bytes_of_a_database(folder: Path, database: Path, at: int, garbage: bytes) -> None:
    broken = folder / "torn.db"
    for old in folder.glob("torn.db*"):
        old.unlink()
    content = bytearray(database.read_bytes())
    content[at : at + len(garbage)] = garbage
    broken.write_bytes(content if at % 3 else content[:at])
    with suppress(PartituneError), Store.open(broken, read_only=True) as store:
        for study in store.studies():
            stored_summary(store, study.name, OBJECTIVES, DecisionRules())
