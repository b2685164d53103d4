"""How the tools that take an env-file read it, each from its own rules, for files given as bytes.

Sources: docker/cli `pkg/kvfile/kvfile.go` (as in 28.2; later releases drop one pair of quotes around a value);
kubectl `pkg/cmd/util/env_file.go`; systemd `src/basic/env-file.c` and systemd.exec(5) `EnvironmentFile=`;
python-dotenv 1.2 `src/dotenv/parser.py`. Each was held against the tool itself on the rows of
`test_export_env_file.py`: kubectl 1.32, the environment.d reader of systemd 252, python-dotenv 1.2.4; docker 28.2 for
the lines it refuses. The shells are not imitated: they are run.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

Reader = Callable[[bytes], dict[str, str]]
BOM = b"\xef\xbb\xbf"


class Refused(Exception):
    """The tool ends with an error."""


def _scanned_lines(content: bytes) -> list[str]:
    """Go's bufio.ScanLines: split at line feeds, one carriage return before them dropped; 64 KiB at most."""
    lines = content.removeprefix(BOM).split(b"\n")
    if any(len(line) >= 65536 for line in lines):
        raise Refused("token too long")
    try:
        return [line.removesuffix(b"\r").decode("utf-8").lstrip() for line in lines]
    except UnicodeDecodeError as error:
        raise Refused("invalid utf8 bytes") from error


def docker(content: bytes) -> dict[str, str]:
    found = {}
    for line in _scanned_lines(content):
        if not line or line.startswith("#"):
            continue
        key, equals, value = line.partition("=")
        if not key or re.search("[ \t]", key):
            raise Refused(f"variable {key!r} contains whitespaces")
        if equals:
            found[key] = value
    return found


def newer_docker(content: bytes) -> dict[str, str]:
    return {key: re.sub(r"\A(['\"])(.*)\1\Z", r"\2", value, flags=re.DOTALL) for key, value in docker(content).items()}


def kubectl(content: bytes) -> dict[str, str]:
    found = {}
    for line in _scanned_lines(content):
        if not line or line.startswith("#"):
            continue
        key, _, value = line.partition("=")
        if not re.fullmatch(r"[-._a-zA-Z][-._a-zA-Z0-9]*", key):
            raise Refused(f"{key!r} is not a valid key name")
        found[key] = value
    return found


def systemd(content: bytes) -> dict[str, str]:
    """A line ends at CR or LF; `;` and `#` begin comment lines; blanks around a value go, quotes and escapes too.

    An invalid name is ignored. Left out, as no test has them: values over several lines, text after a closing quote.
    """
    found = {}
    for line in re.split("[\r\n]", content.split(b"\0")[0].decode("utf-8", errors="replace")):
        name, equals, written = (part.strip(" \t") for part in line.partition("="))
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            quoted = re.fullmatch(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""", written)
            escapes = r"\\([\"\\`$])" if quoted and quoted[2] is not None else r"\\(.)"
            bare = written if quoted is None else quoted[2] if quoted[1] is None else None
            found[name] = quoted[1] if quoted and bare is None else re.sub(escapes, r"\1", bare or "")
    return found


def systemd_before_254(content: bytes) -> dict[str, str]:
    """The same, but a backslash at the end of a comment makes the next line part of it."""
    return systemd(re.sub(rb"(?m)^[ \t]*[#;](?:[^\\\r\n]|\\[\s\S])*", b"", content))


def dotenv(content: bytes) -> dict[str, str]:
    """One binding a line. Left out, as no test has them: values over several lines, escapes within quotes."""
    single, double, bare = r"'((?:\\'|[^'])*)'", r'"((?:\\"|[^"])*)"', r"""((?:[^'"].*)?)"""
    binding = re.compile(rf"\s*(?:export\s+)?([^=#\s]+)\s*=\s*(?:{single}|{double}|{bare})(?:\s*#.*)?\s*")
    found = {}
    for line in re.split("\r\n|\n|\r", content.decode("utf-8").removeprefix("\ufeff")):
        if match := binding.fullmatch(line):
            key, *quoted, plain = match.groups()
            value = next((one for one in quoted if one is not None), None)
            found[key] = re.sub(r"\s+#.*", "", plain).rstrip() if value is None else value
    return found


READERS: dict[str, Reader] = {
    reader.__name__: reader for reader in (docker, newer_docker, kubectl, systemd, systemd_before_254, dotenv)
}
SHELLS = [shell for shell in ("bash", "dash", "sh") if shutil.which(shell)]


def source(shell: str, content: bytes, folder: Path) -> dict[str, str]:
    """The environment of a program started by `set -a; . ./file` in a real shell."""
    (folder / "sourced.env").write_bytes(content)
    command = [shutil.which(shell) or shell, "-c", f"set -a; . ./sourced.env; set +a; exec {shutil.which('env')} -0"]
    done = subprocess.run(command, cwd=folder, env={}, capture_output=True, check=False)
    if done.returncode or done.stderr:
        raise Refused(done.stderr.decode(errors="replace"))
    pairs = (entry.partition("=") for entry in done.stdout.decode("utf-8", errors="replace").split("\0") if entry)
    return {key: value for key, _, value in pairs if key not in ("_", "PWD", "SHLVL", "OLDPWD")}
