"""What a job is told, and what is refused before anything is sent."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.jobs.client import Job
from partitune.jobs.submission import PreparedJob, advice, exit_code, prepare
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace

TINY, RUNNER = SearchSpace.load("tiny"), Runner.load("simulator")
JOB = Job("partitune-tiny-0", "FAILED", "tiny", "", "", None, None, 1, "")


def prepared(
    database: str | None = None, home: str | None = None, python: str = "python3", study: str | None = None
) -> PreparedJob:
    return prepare(TINY, RUNNER, study=study, database=database, home=home, python=python)


@pytest.mark.parametrize(
    ("database", "home", "said"),
    [
        (None, None, "the folder of a job is temporary; allowed: --fetch-results FILE"),
        ("results.db", None, "--db results.db: a relative path"),
        ("./results.db", None, "a relative path"),
        ("~/results.db", None, "a relative path"),
        ("", None, "a relative path"),
        ("sqlite:///results.db", None, "--db sqlite:///results.db: a relative path"),
        ("sqlite://", None, "a relative path"),
        ("mysql://h/d", None, "mysql is not supported"),
        ("://", None, "not a database URL"),
        ("/data/results.db", "here.db", "--db: found beside --fetch-results"),
    ],
)
def test_results_that_would_be_lost_are_refused(database: str | None, home: str | None, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        prepared(database, home)
    assert said in str(caught.value)
    assert "allowed: " in str(caught.value)


@pytest.mark.parametrize(
    "url", ["postgresql://me:tops3cret@db/p", "postgresql+psycopg://db/p?user=me&password=tops3cret"]
)
def test_a_password_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SpecError, match="holds a password") as caught:
        prepared(url)
    assert "tops3cret" not in str(caught.value)


def test_a_password_in_the_query_of_a_url_is_hidden_as_well() -> None:
    with pytest.raises(SpecError) as caught:
        prepared("mysql://db/p?password=tops3cret")
    assert "tops3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("database", "results"),
    [
        ("/data/results.db", "/data/results.db on the head node"),
        ("sqlite:////data/results.db", "sqlite:////data/results.db on the head node"),
        ("postgresql://me@db/p", "postgresql://me@db/p"),
    ],
)
def test_a_database_that_outlasts_the_job_is_searched_into(database: str, results: str) -> None:
    made = prepared(database)
    assert made.results == results
    assert shlex.split(made.entrypoint) == [
        *("python3", "-m", "partitune", "search", "search_spaces/tiny.yaml", "--runner", "runners/simulator.yaml"),
        *("--study", "tiny", "--pool", "ray", "--ray-address", "auto", "--db", database),
    ]


def test_results_that_come_home_are_sent_by_the_job() -> None:
    made = prepared(home="here.db", python="conda run -n ray python", study="t-2")
    command = shlex.split(made.entrypoint)
    assert command[:7] == ["conda", "run", "-n", "ray", "python", "-m", "partitune.jobs.sending"]
    assert command[command.index("--study") + 1] == made.study == "t-2"
    assert "here.db" not in command


@given(st.text(min_size=1).map(lambda text: "/" + text.replace("://", "")))
def test_nothing_typed_is_read_by_the_shell_as_more_than_one_word(path: str) -> None:
    command = shlex.split(prepared(path).entrypoint)
    assert command[-1] == path
    assert len(command) == 15


@pytest.mark.parametrize("study", ["", "a b", "a/b", "x" * 65, "a\n", "$(reboot)"])
def test_a_study_whose_name_cannot_be_part_of_a_url_is_refused(study: str) -> None:
    with pytest.raises(SpecError, match="--study"):
        prepared("/data/results.db", study=study)


@pytest.mark.parametrize("python", ["", "  ", "python 'x"])
def test_a_python_that_is_no_command_is_refused(python: str) -> None:
    with pytest.raises(SpecError, match="--python"):
        prepared("/data/results.db", python=python)


@pytest.mark.parametrize(
    ("status", "code", "exit_"),
    [("SUCCEEDED", 0, 0), ("STOPPED", None, 130), ("FAILED", 2, 2), ("FAILED", None, 1), ("FAILED", -9, 1)],
)
def test_the_exit_code_is_the_jobs_outcome(status: str, code: int | None, exit_: int) -> None:
    assert exit_code(replace(JOB, status=status, exit_code=code)) == exit_


@pytest.mark.parametrize(
    ("message", "code", "said"),
    [
        ("ModuleNotFoundError: No module named 'optuna'", 1, "has no module optuna"),
        ("/usr/bin/python3: No module named partitune", 1, "has no module partitune"),
        ("ImportError: cannot import name 'StrEnum' from 'enum'", 1, "is older than 3.11"),
        ("/bin/sh: 1: python3: not found", 127, "does not start"),
    ],
)
def test_a_python_that_cannot_run_partitune_is_explained(message: str, code: int, said: str) -> None:
    assert said in advice(replace(JOB, message=message, exit_code=code))
    assert "--python" in advice(replace(JOB, message=message, exit_code=code))


def test_other_failures_are_not_explained_away() -> None:
    assert advice(replace(JOB, message="partitune: results.db: locked", exit_code=2)) == ""
