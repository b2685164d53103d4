"""One spelling that every reader of an env-file takes alike: those of `env_file_readers`, and real shells."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.export.env_file import parse, render
from tests.env_file_readers import BOM, READERS, SHELLS, Reader, Refused, source

PLAIN = "ABCXYZabcxyz0123456789_.,:/+-"
NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{2,20}", fullmatch=True)
VALUES = st.text(PLAIN, max_size=40)
SHELL_OWN = "PPID RANDOM SECONDS LINENO UID EUID OPTIND SHELLOPTS BASH_VERSINFO GROUPS SHLVL _".split()  # noqa: SIM905
REFUSED = [
    *("10, 11", " 1", "1 ", "\t", "a\nB=1", "a\r", "\0"),  # blanks, ends of lines
    *('"10"', "'10'", '{"m":1}', "a\\", "`id`", "$A", "%41"),  # quotes, JSON, what is expanded
    *("10#", "a;b", "~/x", "*", "a&b", "a|b", "(1)", "<x", "!", "a=b"),  # other signs of a shell
    *("١٢", "é", "\ufeff1"),  # digits and letters that are not ASCII
]
NEVER_WRITTEN = [
    *("A=1\r\n", "\ufeffA=1\n", "A=1\nA=2\n", "A=1", "", "\n"),
    *("export A=1\n", 'A="1"\n', "A=\n", " A=1\n", "A=1 # n\n"),
]


def readers_of(folder: Path) -> dict[str, Reader]:
    """Every reader, those of the shells included."""
    shells: dict[str, Reader] = {}
    for shell in SHELLS:
        shells[shell] = lambda content, shell=shell: source(shell, content, folder)  # type: ignore[misc]
    return {**READERS, **shells}


# Rows: a line a person may write, and what each kind of reader makes of it. None: an error, or no such variable.
DIFFERENCES = [
    ("A=10,11,12", {"docker": "10,11,12", "systemd": "10,11,12", "shell": "10,11,12", "dotenv": "10,11,12"}),
    ('A="10,11,12"', {"docker": '"10,11,12"', "systemd": "10,11,12", "shell": "10,11,12", "dotenv": "10,11,12"}),
    ("A=10, 11, 12", {"docker": "10, 11, 12", "systemd": "10, 11, 12", "shell": None, "dotenv": "10, 11, 12"}),
    ("A=10,11 # n", {"docker": "10,11 # n", "systemd": "10,11 # n", "shell": "10,11", "dotenv": "10,11"}),
    ('A={"m":"x"}', {"docker": '{"m":"x"}', "systemd": '{"m":"x"}', "shell": "{m:x}", "dotenv": '{"m":"x"}'}),
    ("A='{\"m\":1}'", {"docker": "'{\"m\":1}'", "systemd": '{"m":1}', "shell": '{"m":1}', "dotenv": '{"m":1}'}),
    ("export A=1", {"docker": None, "systemd": None, "shell": "1", "dotenv": "1"}),
    ("A=$A$", {"docker": "$A$", "systemd": "$A$", "shell": "$", "dotenv": "$A$"}),
    ("; A\nA=1", {"docker": None, "systemd": "1", "shell": None, "dotenv": "1"}),
    ("# c \\\nA=1\nB=2", {"docker": "1", "systemd": "1", "systemd_before_254": None, "shell": "1", "dotenv": "1"}),
]


@pytest.mark.parametrize(("line", "expected"), DIFFERENCES, ids=[line for line, _ in DIFFERENCES])
def test_the_readers_differ_as_their_users_report(line: str, expected: dict[str, str | None], tmp_path: Path) -> None:
    kinds = {"kubectl": "docker", "bash": "shell", "dash": "shell", "sh": "shell", "systemd_before_254": "systemd"}
    for name, reader in readers_of(tmp_path).items():
        if name == "newer_docker":
            continue
        try:
            found = reader(f"{line}\n".encode()).get("A")
        except Refused:
            found = None
        assert found == expected.get(name, expected.get(kinds.get(name, name))), name


@given(
    variables=st.dictionaries(NAMES, VALUES, max_size=6),
    comments=st.lists(st.text(max_size=40), min_size=1, max_size=4),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_every_reader_takes_alike_what_is_rendered(
    variables: dict[str, str], comments: list[str], tmp_path: Path
) -> None:
    content = render(variables, comments).encode("utf-8")
    wanted = {key: value for key, value in variables.items() if value}
    assert parse(content.decode(), "x.env") == wanted
    for name, reader in readers_of(tmp_path).items():
        assert reader(content) == wanted, name


@given(key=st.text(max_size=8), value=st.text(max_size=12))
def test_what_is_accepted_at_all_every_reader_takes_alike(key: str, value: str) -> None:
    try:
        content = render({key: value}, ()).encode("utf-8")
    except SpecError:
        return
    for name, reader in READERS.items():
        assert reader(content) == ({key: value} if value else {}), name


@pytest.mark.parametrize("value", REFUSED)
def test_a_value_that_some_reader_would_change_is_refused_in_one_line(value: str) -> None:
    with pytest.raises(SpecError) as caught:
        render({"A": value}, ())
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"export: A={value!r} ")
    assert "allowed in values: letters, digits and _ . , : / + -" in message


@pytest.mark.parametrize("key", ["", "1A", "A B", "A-B", "export A", "A.B", "Ä", "A\n", "A="])
def test_a_name_that_is_none_is_refused(key: str) -> None:
    with pytest.raises(SpecError, match="not the name of a variable"):
        render({key: "1"}, ())


@pytest.mark.parametrize("key", SHELL_OWN)
def test_names_that_a_shell_keeps_are_refused_because_it_does_keep_them(key: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=f"'{key}' cannot be set from a file"):
        render({key: "a,b"}, ())
    if "bash" not in SHELLS:
        pytest.skip("no bash here")
    with contextlib.suppress(Refused):
        assert source("bash", f"{key}=a,b\n".encode(), tmp_path).get(key) != "a,b"


def test_an_empty_value_is_left_out_because_an_engine_stops_at_an_empty_partition() -> None:
    assert render({"VLLM_PP_LAYER_PARTITION": "", "A": "1"}, ()) == "A=1\n"


def test_the_bytes_have_neither_carriage_return_nor_byte_order_mark() -> None:
    content = render({"A": "1"}, ["one\r\ntwo", "\ufeffthree", "four\u2028five", "six\x00seven", "eight\\"]).encode()
    assert content == b"# one two\n# ?three\n# four five\n# six?seven\n# eight/\nA=1\n"
    assert not content.startswith(BOM)


@pytest.mark.parametrize("text", NEVER_WRITTEN)
def test_reading_back_refuses_what_the_writer_never_writes(text: str) -> None:
    with pytest.raises(SpecError, match=r"x\.env"):
        parse(text, "x.env")
