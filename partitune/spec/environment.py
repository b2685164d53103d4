"""What a variable may be called and hold that partitune writes down: what every reader of an env-file takes alike.

Decision: docker, systemd, kubectl, shells and dotenv readers agree on plain names and on values of `[A-Za-z0-9_.,:/+-]`
alone (docker keeps quotes up to release 28 and drops them later, systemd takes `;` for a comment, a shell eats quotes).
The rule stands here and not with the export, so that a search space whose winner could not be exported is refused when
it is read, not after a night of trials. What only a site needs (`NCCL_SOCKET_IFNAME: ^docker0`) is no part of a
deployment: it belongs in a runner, where any text is allowed.
"""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_VALUE = re.compile(r"[A-Za-z0-9_.,:/+-]*", re.ASCII)

#: Names a shell does not take from a file: read-only, or given another meaning (bash 5.2 and dash 0.5.12, tried).
_OF_THE_SHELL = re.compile(
    "BASH.*|COMP_WORDBREAKS|DIRSTACK|EPOCHREALTIME|EPOCHSECONDS|EUID|FUNCNAME|GROUPS|HISTCMD|LINENO|OPTIND|PIPESTATUS|"
    "PPID|RANDOM|SECONDS|SHELLOPTS|SHLVL|SRANDOM|UID|_"
)


def name_fault(name: str) -> str | None:
    """Why an env-file cannot set a variable of this name, and what is allowed; None when it can."""
    if not _NAME.fullmatch(name):
        return "is not the name of a variable; allowed: letters, digits and _"
    if _OF_THE_SHELL.fullmatch(name):
        return "cannot be set from a file: a shell keeps this name; allowed: another name"
    return None


def value_fault(value: str) -> str | None:
    """Why an env-file cannot hold this value, and what is allowed; None when it can, or is empty and left out."""
    if _VALUE.fullmatch(value):
        return None
    return (
        "cannot be written so that docker, systemd, kubectl and a shell read it alike; allowed in values: letters, "
        "digits and _ . , : / + -"
    )
