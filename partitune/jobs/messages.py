"""Results in the log of a job: each study, trial and ending is one marked line, whole or in numbered pieces.

Decision: the log is the one thing of a job that every Ray serves to whoever may see the job, while it runs and after it
ended, so results travel there. They go trial by trial and not as a database file: what was measured before a job was
killed is home already, and merging is the store's own idempotent `record`. A line is written in one piece to a file
opened for appending, but another process may have left half a line before it, so a mark counts wherever it stands.
What is read is not trusted: sizes are bounded and every value is checked for its type.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, TypeAdapter, ValidationError

from partitune.analysis.final import Phase
from partitune.candidate import Result
from partitune.errors import ClusterError
from partitune.store import StudyState

#: Characters of a piece; Ray hands a log on in portions of about 20,000 (ray 2.60, dashboard/modules/job/utils.py).
PIECE = 4000
#: Largest message, unpacked; a trial of 128 stages has 40 KiB.
MAX_BYTES = 16 << 20
_Count = Annotated[int, Field(ge=0, lt=2**63)]  # what a database column holds
_Text = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00]*$")]
_Time = Annotated[AwareDatetime, Field(ge=datetime(2020, 1, 1, tzinfo=UTC))]
_MARK = re.compile(r"@partitune(\+?) ([A-Za-z0-9+/]+=*)\n?$")


@dataclass(frozen=True, slots=True)
class StudyMessage:
    """What `Store.create_study` needs."""

    name: _Text
    spec: Mapping[str, Any]
    engine: _Text
    engine_version: _Text
    runner: _Text
    random_seed: _Count
    kind: Literal["study"] = "study"


@dataclass(frozen=True, slots=True)
class TrialMessage:
    """What `Store.record` needs."""

    study: _Text
    number: _Count
    origin: _Text
    finished_at: _Time
    result: Result
    kind: Literal["trial"] = "trial"


@dataclass(frozen=True, slots=True)
class ScreenedMessage:
    """What `Store.record_screened` needs."""

    study: _Text
    origin: _Text
    result: Result
    kind: Literal["screened"] = "screened"


@dataclass(frozen=True, slots=True)
class RepeatMessage:
    """What `Store.record_repeat` needs."""

    study: _Text
    phase: Phase
    repeat: _Count
    trial: _Count
    finished_at: _Time
    result: Result
    kind: Literal["repeat"] = "repeat"


@dataclass(frozen=True, slots=True)
class EndMessage:
    """How a study ended, for now."""

    study: _Text
    state: StudyState
    kind: Literal["end"] = "end"


Message = StudyMessage | ScreenedMessage | TrialMessage | RepeatMessage | EndMessage
_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="kind")])


def encode(message: Message) -> list[str]:
    """The lines of `message`, each with its line end."""
    packed = base64.b64encode(zlib.compress(_ADAPTER.dump_json(message), 9)).decode()
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
        return _ADAPTER.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise ClusterError(f"the job's log holds a damaged message: {place}: {first['msg']}") from error
    except (binascii.Error, zlib.error, ValueError) as error:
        raise ClusterError(f"the job's log holds a damaged message: {error}") from error
