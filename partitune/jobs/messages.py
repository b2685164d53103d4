"""Results in the log of a job: each study, trial and ending is one marked line, whole or in numbered pieces.

Decision: the log is the one thing of a job that every Ray serves to whoever may see the job, while it runs and after it
ended, so results travel there. They go trial by trial and not as a database file: what was measured before a job was
killed is home already, and merging is the store's own idempotent `record`. A line is written in one piece to a file
opened for appending, but another process may have left half a line before it, so a mark counts wherever it stands.
What is read is not trusted: sizes are bounded and every value is checked for its type.
"""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError

from partitune.analysis.trial import Repeat, Screened, Trial
from partitune.candidate import Candidate
from partitune.errors import ClusterError
from partitune.store import StudyState, StudyTerms

#: Characters of a piece; Ray hands a log on in portions of about 20,000 (ray 2.60, dashboard/modules/job/utils.py).
PIECE = 4000
#: Largest message, unpacked; a trial of 128 stages has 40 KiB.
MAX_BYTES = 16 << 20
#: Nothing was sent before; a clock that says so is wrong.
_EARLIEST = datetime(2020, 1, 1, tzinfo=UTC)
_LONGEST_NAME = 1000
_MARK = re.compile(r"@partitune(\+?) ([A-Za-z0-9+/]+=*)\n?$")


@dataclass(frozen=True, slots=True)
class EndMessage:
    """How a study ended, for now."""

    study: str
    state: StudyState


Message = StudyTerms | Screened | Trial | Repeat | EndMessage
#: What a message is called in the log.
KINDS: dict[type[Message], str] = {
    StudyTerms: "study",
    Screened: "screened",
    Trial: "trial",
    Repeat: "repeat",
    EndMessage: "end",
}
_ADAPTERS: dict[str, TypeAdapter[Message]] = {name: TypeAdapter(kind) for kind, name in KINDS.items()}
_OBJECT = TypeAdapter(dict[str, Any])


def encode(message: Message) -> list[str]:
    """The lines of `message`, each with its line end."""
    kind = KINDS[type(message)]
    content = {**_ADAPTERS[kind].dump_python(message, mode="json"), "kind": kind}
    packed = base64.b64encode(zlib.compress(_OBJECT.dump_json(content), 9)).decode()
    pieces = [packed[start : start + PIECE] for start in range(0, len(packed), PIECE)]
    return [f"@partitune+ {piece}\n" for piece in pieces[:-1]] + [f"@partitune {pieces[-1]}\n"]


class Decoder:
    """Takes the lines of a log in order and tells messages from what a person reads."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def feed(self, line: str) -> tuple[str, Message | None]:
        """The text to show of `line` (empty for none), and the message that it completes.

        Raises:
            ClusterError: a marked line that is no message of partitune.
        """
        mark = _MARK.search(line)
        if mark is None:
            return line, None
        text = line[: mark.start()]
        self._pieces.append(mark[2])
        if mark[1]:
            if sum(map(len, self._pieces)) > 2 * MAX_BYTES:
                raise ClusterError(f"the job's log holds a message of more than {MAX_BYTES >> 20} MiB")
            return text, None
        packed, self._pieces = "".join(self._pieces), []
        return text, _decode(packed)


def _decode(packed: str) -> Message:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(packed, validate=True), MAX_BYTES)
        if not unpacker.eof:
            raise ValueError(f"cut off, or larger than {MAX_BYTES >> 20} MiB")
        return _read(_OBJECT.validate_json(content))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ClusterError(f"the job's log holds a damaged message: {place}: {first['msg']}") from error
    except (zlib.error, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ClusterError(f"the job's log holds a damaged message: {error}") from error


def _read(content: dict[str, Any]) -> Message:
    kind = content.pop("kind", None)
    if kind not in KINDS.values():
        raise ValueError(f"its kind is {kind!r}")
    match content:
        case {"result": {"candidate": {"knobs": _} as former} as result}:
            # As it was sent before 2026-12, when the layout was one of the flags.
            result["candidate"] = asdict(Candidate.from_json(former))
    message = _ADAPTERS[kind].validate_json(_OBJECT.dump_json(content), strict=True)
    for part in fields(message):
        match getattr(message, part.name):
            case str() as text if len(text) > _LONGEST_NAME or "\0" in text:
                raise ValueError(f"{part.name} is no name")
            case int() as number if not 0 <= number < 2**63:  # what a database column holds
                raise ValueError(f"{part.name} is {number}")
            case datetime() as time if time.tzinfo is None or time < _EARLIEST:
                raise ValueError(f"{part.name} is {time}")
    return message
