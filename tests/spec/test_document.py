"""Reading YAML strictly: values as any YAML reader would have them, or an error that names the line."""

from __future__ import annotations

import math

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.errors import SpecError
from partitune.spec.catalog import MAX_YAML_BYTES
from partitune.spec.yaml.document import MAX_DEPTH, MAX_NODES, from_memory, read_yaml
from partitune.spec.yaml.faults import line_of
from tests.strategies import json_values


def refusal(content: bytes) -> str:
    with pytest.raises(SpecError) as caught:
        read_yaml(content, "a.yaml")
    return str(caught.value)


def faults(text: str) -> list[str]:
    return [fault.text for fault in read_yaml(text.encode(), "a.yaml").faults]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("16", 16), ("-3", -3), ("+3", 3), ("0", 0), ("0.5", 0.5), ("-0.5", -0.5), ("5.", 5.0), ("1.0e+3", 1000.0),
        ("true", True), ("FALSE", False), ("~", None), ("", None), ("null", None),
        ('"16"', "16"), ("'yes'", "yes"), ("0.33.0", "0.33.0"), ("10,11,12", "10,11,12"), ("a b", "a b"), ("n", "n"),
        ("[1, [a]]", [1, ["a"]]), ("{b: {c: 1}}", {"b": {"c": 1}}), ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)  # fmt: skip
def test_plain_values(text: str, value: object) -> None:
    read = read_yaml(f"a: {text}".encode(), "a.yaml")
    assert (read.value, read.faults) == ({"a": value}, ())
    assert type(read.value["a"]) is type(value)


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "No",
        "on",
        "OFF",
        "010",
        "0o17",
        "0x1F",
        "0b1",
        "1_000",
        "12:30",
        "1e3",
        "1.0e3",
        "-.5",
        "2026-01-01",
        "<<",
        "=",
    ],
)
def test_what_two_yaml_versions_read_differently_is_refused(text: str) -> None:
    (fault,) = faults(f"a: {text}")
    assert text in fault
    assert "quotes" in fault


def test_booleans_of_yaml_1_1_are_explained() -> None:
    assert faults("a: yes") == [
        "found yes, a boolean to YAML 1.1 and text to YAML 1.2; allowed: true or false, or quotes around it"
    ]


@pytest.mark.parametrize("text", [".inf", "-.inf", ".nan", ".NaN"])
def test_infinity_and_nan_are_refused(text: str) -> None:
    assert faults(f"a: {text}") == [f"found {text}; allowed: a finite number"]


def test_every_key_keeps_its_line() -> None:
    read = read_yaml(b"# note\nkind: x\n\na:\n  - 1\n  -\n    b: 2\nc: {d: [3,\n  4]}\n", "dir/a.yaml")
    where = {
        path: line_of(read.lines, path)
        for path in [("kind",), ("a", 0), ("a", 1, "b"), ("c", "d", 1), ("c", "no"), ("no",)]
    }
    assert where == {
        ("kind",): 2,
        ("a", 0): 5,
        ("a", 1, "b"): 7,
        ("c", "d", 1): 9,
        ("c", "no"): 8,
        ("no",): 2,
    }


def test_duplicate_keys_name_both_lines_and_the_first_counts() -> None:
    read = read_yaml(b"a:\n  b: 1\n  c: 2\n  b: 3\n", "a.yaml")
    assert read.value == {"a": {"b": 1, "c": 2}}
    assert [(f.path, f.line, f.text) for f in read.faults] == [(("a", "b"), 4, "duplicate key; first given in line 2")]


def test_a_number_and_the_same_digits_in_quotes_are_one_key() -> None:
    assert faults('pinned: {0: 1, "0": 2}') == ["duplicate key; first given in line 1"]


def test_byte_order_mark_and_crlf_are_read() -> None:
    read = read_yaml("\ufeffa: 1\r\nb:\r\n  c: é\r\n".encode(), "a.yaml")
    assert read.value == {"a": 1, "b": {"c": "é"}}
    assert line_of(read.lines, ("b", "c")) == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "a.yaml:1: the file is empty; allowed: a mapping"),
        (b"\n# only a comment\n", "a.yaml:1: the file is empty"),
        (b"---\n", "the file is empty"),
        (b"\n- 1\n- 2\n", "a.yaml:2: the file holds a list of 2; allowed: a mapping"),
        (b"word", "a.yaml:1: the file holds the text 'word'; allowed: a mapping"),
        (b"a:\n\tb: 1\n", "a.yaml:2: a tab in the indentation; allowed: spaces"),
        (b"a:\n  [1,\n", "a.yaml:3: not readable as YAML: expected"),
        (b"a: 'open\n", "(begun in line 1)"),
        (b"a: 1\n b: 2\n", "a.yaml:2: not readable as YAML: mapping values are not allowed here"),
        (b"a: 1\nb: \xff\n", "a.yaml:2: found the byte 0xff; allowed: UTF-8 text"),
        ("a: 1\n".encode("utf-16"), "a.yaml:1: found UTF-16; allowed: UTF-8"),
        (b"a: 1\nb: \x00\n", "a.yaml:2: found the character '\\x00'"),
        (b"a: 1\n---\nb: 2\n", "a.yaml:2: a second document begins"),
        (b"a: *b\n", "a.yaml:1: the alias *b names no anchor"),
        (b"a: &b [*b]\n", "a.yaml:1: the alias *b names no anchor"),
        (b"? [a]\n: 1\n", "a.yaml:1: a list, mapping or alias as a key"),
        (b'a: "\\UFFFFFFFF"\n', "a.yaml:1: not readable as YAML"),
        (b"%YAML 3.0\n---\na: 1\n", "not readable as YAML"),
        (b"a: " + b"[" * 200, "a.yaml:1: nested deeper than"),
        (b"a: " + b"{b: " * 200, "nested deeper than"),
        (b"- " * 200_000, "nested deeper than"),
        (b"a: [" + b"1," * 200_000, "more than 20000 values"),
        (b"#" * (2 << 20), "a.yaml:1: larger than 1 MiB"),
    ],
)  # fmt: skip
def test_unreadable_files_name_the_line(content: bytes, message: str) -> None:
    assert message in refusal(content)


def test_a_syntax_error_does_not_hide_what_was_found_before_it() -> None:
    assert refusal(b"a: yes\nb: [\n").splitlines()[0].startswith("a.yaml:1: a: found yes")


def test_tags_are_refused_not_obeyed() -> None:
    assert faults("a: !!python/object/apply:os.getcwd []") == [
        "found the tag 'tag:yaml.org,2002:python/object/apply:os.getcwd'; allowed: values without tags"
    ]
    assert faults("a: !!str 5") == ["found the tag 'tag:yaml.org,2002:str'; allowed: values without tags"]


def test_aliases_work_and_bombs_do_not() -> None:
    read = read_yaml(b"a: &x [1, 2]\nb: *x\n", "a.yaml")
    assert read.value == {"a": [1, 2], "b": [1, 2]}
    assert line_of(read.lines, ("b", 1)) == 2
    rows = ["a0: &a0 [" + "x," * 10 + "]"] + [f"a{i}: &a{i} [" + f"*a{i - 1}," * 10 + "]" for i in range(1, 9)]
    assert f"a.yaml:5: more than {MAX_NODES} values, aliases expanded" in refusal("\n".join(rows).encode())


def test_the_largest_file_is_read() -> None:
    content = b"a: 1\n#" + b"x" * (MAX_YAML_BYTES - 6)
    assert read_yaml(content, "a.yaml").value == {"a": 1}
    assert "larger" in refusal(content + b"x")


def test_control_characters_in_escapes_are_refused() -> None:
    assert faults('a: "\\e[31m"') == ["found a text with the character '\\x1b'; allowed: printable text"]
    assert faults('a: "\\ud800"') == ["found a text with the character '\\ud800'; allowed: printable text"]


def test_memory_is_held_to_the_same_bounds() -> None:
    knot: dict[str, object] = {}
    knot["a"] = knot
    values = {"t": (1, 2), "f": math.inf, "n": math.nan, "s": {1}, "d": {None: 1}, "k": knot}
    read = from_memory(values, "command line")
    assert read.value["t"] == [1, 2]
    assert [(fault.path[0], fault.text) for fault in read.faults] == [
        ("f", "found the number inf; allowed: a finite number"),
        ("n", "found the number nan; allowed: a finite number"),
        ("s", "found a set; allowed: text, a number, true, false, a list or a mapping"),
        ("d", "found nothing as a key; allowed: text"),
        ("k", f"nested deeper than {MAX_DEPTH} levels"),
    ]
    with pytest.raises(SpecError, match="command line: found an empty list"):
        from_memory([], "command line")


trees = json_values(st.text(max_size=20), keys=st.text(max_size=8) | st.integers(), leaves=20)


@given(st.binary(max_size=200) | st.text(alphabet="ab01:-[]{}&*!|>%#?,'\"\n\t yesno.", max_size=60).map(str.encode))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused_and_never_differ_from_pyyaml(content: bytes) -> None:
    try:
        read = read_yaml(content, "a.yaml")
    except SpecError:
        return
    if not read.faults:
        ours = {str(key): value for key, value in read.value.items()}
        theirs = {str(key): value for key, value in yaml.safe_load(content.decode("utf-8-sig")).items()}
        assert {k: v for k, v in ours.items() if k in theirs} == {k: v for k, v in theirs.items() if k in ours}


@given(trees)
@settings(max_examples=200, deadline=None)
def test_what_pyyaml_writes_is_read_back_or_refused(tree: object) -> None:
    text = yaml.safe_dump({"a": tree})
    try:
        read = read_yaml(text.encode(), "a.yaml")
    except SpecError:
        return  # a key or text that no configuration holds
    if not read.faults:
        assert read.value == yaml.safe_load(text)
