"""The one spelling of an env-file that docker, systemd, kubectl, a POSIX shell and dotenv readers agree on.

Decision: `KEY=value` with names and values as in `spec.environment`, no quotes, no blanks, line feeds, comments on
lines of their own that begin with `#`. Every reader differs on anything beyond that, so anything beyond that is
refused, and an empty value is left out: engines stop at an empty partition.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from partitune.errors import SpecError
from partitune.spec.environment import name_fault, value_fault

#: Variables that decide what code a shell, a loader or an interpreter runs, whatever program is started.
_CODE = re.compile(
    r"PATH|IFS|ENV|BASH_ENV|SHELLOPTS|(LD|DYLD)_\w+|PYTHON(PATH|HOME|STARTUP|INSPECT|BREAKPOINT)|PERL5\w+"
)
_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([A-Za-z0-9_.,:/+-]+)", re.ASCII)


def render(variables: Mapping[str, str], comments: Sequence[str]) -> str:
    """The file's text. Comments come first, one a line.

    Raises:
        SpecError: a name or value that some reader would change.
    """
    for key, value in variables.items():
        if fault := name_fault(key):
            raise SpecError(f"export: {key!r} {fault}")
        if fault := value_fault(value):
            raise SpecError(f"export: {key}={value!r} {fault}")
    lines = [comment_line(comment) for comment in comments]
    lines += [f"{key}={value}" for key, value in variables.items() if value]
    return "\n".join(lines) + "\n"


def code_warnings(variables: Mapping[str, str]) -> tuple[str, ...]:
    """What to look at before the file is sourced: a search space may come from anybody."""
    return tuple(
        f"engine.env sets {name}={value}, which decides what code runs: look at it before you source the file"
        for name, value in variables.items()
        if _CODE.fullmatch(name)
    )


def comment_line(text: str) -> str:
    """A comment that ends where its line does, for every reader.

    systemd before 254 takes the line after a comment that ends in a backslash for more of the comment
    (`src/basic/env-file.c`); docker and kubectl refuse a file that is not UTF-8.
    """
    plain = " ".join(text.split()).replace("\\", "/")
    return "# " + "".join(letter if letter.isprintable() else "?" for letter in plain)


def parse(text: str, source: str) -> dict[str, str]:
    """Read such a file back, stricter than any of its readers.

    Raises:
        SpecError: names the line.
    """
    variables: dict[str, str] = {}
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        if line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None or match[1] in variables:
            raise SpecError(
                f"{source}:{number}: {line[:80]!r}; allowed: KEY=value, every key once, no quotes or blanks"
            )
        variables[match[1]] = match[2]
    if not text.endswith("\n"):
        raise SpecError(f"{source}: the last line does not end; the file is not whole")
    return variables
