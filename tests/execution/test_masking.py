"""What is secret is known by name, and taken out of a text in every form it comes in."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from partitune.execution.processes import masking
from partitune.execution.processes.masking import blot_out, keep_secret, mask


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_kept", set[str]())
    monkeypatch.setenv("SOME_PASSWORD", 'p"ss wörd')
    monkeypatch.setenv("SHORT_TOKEN", "true")
    monkeypatch.setenv("A_KEY", "123456")
    keep_secret(["kept-value", "first line\nsecond line"])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("kept-value", "***"),
        ("a kept-value, twice xkept-valuey", "a ***, twice x***y"),
        ('p"ss wörd', "***"),
        (json.dumps({"error": 'not p"ss wörd'}), '{"error": "not ***"}'),
        ("https://h/?t=" + quote('p"ss wörd', safe=""), "https://h/?t=***"),
        ("one\nsecond line\nthree", "one\n***\nthree"),
        ("true", "true"),  # a text would say nothing any more
        ('{"count": 1234567, "port": 123456}', '{"count": 1234567, "port": ***}'),
        ("proxy http://me:secret@proxy:8080/x", "proxy http://***@proxy:8080/x"),
        ("Authorization: Bearer abc.DEF-123=", "Authorization: Bearer ***"),
        ("hf_" + "a1B2" * 9, "***"),
        ("hf_transfer is on, http://h:8000/v1 serves, 10:30", "hf_transfer is on, http://h:8000/v1 serves, 10:30"),
    ],
)
def test_a_secret_is_masked_in_every_form(text: str, masked: str) -> None:
    assert mask(text) == masked


def test_a_file_is_blotted_out_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "_PIECE", 100)
    file = tmp_path / "log"
    text = ("x" * 95 + "kept-value" + "ö" * 7 + 'p"ss wörd\n') * 5
    file.write_text(text)
    before = file.stat()
    with file.open("a") as other:
        blot_out(file)
        other.write("said meanwhile")
    after = file.stat()
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size + len("said meanwhile"))
    assert file.read_text() == ("x" * 95 + "*" * 10 + "ö" * 7 + "*" * 10 + "\n") * 5 + "said meanwhile"
