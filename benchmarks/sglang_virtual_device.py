"""A GPU, its streams and its links in virtual time, for driving SGLang's own pipeline loop without any of them.

Decision: the loop's order of operations is what is to be recorded, so it runs unchanged, one thread a stage, and only
what it calls is replaced: a stream is the moment its newest work ends, an event is such a moment, a message is a pair
of moments. A moment may hang on another stage that has not come so far, so it is worked out when the CPU waits for it.
Messages are only ever awaited, never polled, hence threads cannot change the result.

Rules of the links (the transport's, not SGLang's): a CPU message (gloo) is taken when the receiver asks for it, and the
sender's wait lasts until then; a tensor that takes time (NCCL rendezvous) moves once both streams have come to
it; one that takes none needs no partner, and the sampled tokens, a few bytes, are buffered and arrive after `ring_s`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

#: A stage has failed: the others need not wait for it.
FAILED = threading.Event()
_LOOK_S = 0.2  # real seconds between two looks at it


class AnotherStageFailedError(Exception):
    """What this stage waits for will not come."""


class Moment:
    """A virtual time: `extra_s` after the latest of others."""

    __slots__ = ("_after", "_extra_s", "_value_s")

    def __init__(self, after: Sequence[Moment] = (), extra_s: float = 0.0) -> None:
        self._after = tuple(after)
        self._extra_s = extra_s
        self._value_s: float | None = None

    def seconds(self) -> float:
        """The time; waits for the stage it hangs on."""
        after = self._after  # read first: another thread may have worked the value out and let go of the rest
        if self._value_s is None:
            self._value_s = max((moment.seconds() for moment in after), default=0.0) + self._extra_s
            self._after = ()
        return self._value_s


class Promise(Moment):
    """A moment that another stage will name."""

    __slots__ = ("_named", "_ready")

    def __init__(self) -> None:
        super().__init__()
        self._ready = threading.Event()
        self._named: Moment | None = None

    def name(self, moment: Moment) -> None:
        """Say what it is."""
        self._named = moment
        self._ready.set()

    def seconds(self) -> float:
        """The time; waits until it is named."""
        while not self._ready.wait(_LOOK_S):
            if FAILED.is_set():
                raise AnotherStageFailedError
        assert self._named is not None
        return self._named.seconds()


def at(seconds: float) -> Moment:
    """A known moment."""
    return Moment((), seconds)


class Stream:
    """Work in order."""

    def __init__(self) -> None:
        self.tail = Moment()

    def wait(self, moment: Moment) -> None:
        """Nothing enqueued later starts before `moment`."""
        self.tail = Moment((self.tail, moment))

    def run(self, seconds: float, issued_s: float) -> tuple[Moment, Moment]:
        """Enqueue work at CPU time `issued_s`; its start and end."""
        start = Moment((self.tail, at(issued_s)))
        self.tail = Moment((start,), seconds)
        return start, self.tail

    def wait_stream(self, other: Stream) -> None:
        """As torch.cuda.Stream."""
        self.wait(other.tail)

    def wait_event(self, event: Event) -> None:
        """As torch.cuda.Stream."""
        self.wait(event.moment)


class Event:
    """As torch.cuda.Event."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.moment = Moment()

    def record(self, stream: Stream | None = None) -> None:
        """Mark the end of what the stream holds now."""
        self.moment = (stream or self._stage.current).tail

    def synchronize(self) -> None:
        """The CPU waits."""
        self._stage.cpu_s = max(self._stage.cpu_s, self.moment.seconds())


class Within:
    """`with torch.cuda.stream(stream)`; may be entered again and again."""

    def __init__(self, stage: Stage, stream: Stream) -> None:
        self._stage, self._stream = stage, stream
        self._outer: list[Stream] = []

    def __enter__(self) -> None:
        self._outer.append(self._stage.current)
        self._stage.current = self._stream

    def __exit__(self, *_: object) -> None:
        self._stage.current = self._outer.pop()


@dataclass
class Message:
    """One message between neighbours."""

    content: Any
    sent_s: float
    ready: Moment  # the sender's stream has the tensor
    taken: Promise = field(default_factory=Promise)  # the receiver's CPU asks for it
    left: Promise = field(default_factory=Promise)  # the sender's stream is rid of it


class Work:
    """What an asynchronous send returns."""

    def __init__(self, wait: Callable[[], None]) -> None:
        self.work = self
        self.wait = wait


@dataclass
class Stage:
    """One stage: a CPU, three streams and the way to the next stage."""

    rank: int
    size: int
    outbox: queue.Queue[Message]
    inbox: queue.Queue[Message]
    request_outbox: queue.Queue[Message]
    request_inbox: queue.Queue[Message]
    handoff_s: Callable[[int, int], float]  # (boundary, tokens) -> seconds
    ring_s: float

    def __post_init__(self) -> None:
        self.cpu_s = 0.0
        self.schedule, self.forward, self.copy, self.comm = Stream(), Stream(), Stream(), Stream()
        self.current = self.schedule
        self.is_first_rank = self.rank == 0
        self.is_last_rank = self.rank == self.size - 1
        self.world_size = self.size

    # what SGLang calls a device module
    def Event(self) -> Event:  # noqa: N802 - torch's name
        """A fresh event."""
        return Event(self)

    def current_stream(self) -> Stream:
        """The stream work is enqueued on."""
        return self.current

    # what SGLang calls a group
    def send_tensor_dict(self, tensor_dict: dict[str, Any], **_: object) -> list[Work]:
        """Metadata over gloo, tensors over NCCL."""
        message = Message(dict(tensor_dict), self.cpu_s, Moment((self.current.tail, at(self.cpu_s))))
        self.outbox.put(message)
        return [Work(lambda: self._meet(message)), Work(lambda: self.current.wait(message.left))]

    def recv_tensor_dict(self, **_: object) -> dict[str, Any]:
        """The next message of the stage before; the current stream waits for its tensors."""
        message = self._take(self.inbox)
        content: dict[str, Any] = message.content
        together = Moment((message.ready, self.current.tail, at(self.cpu_s)))
        if content["__msg_type__"] == "proxy":
            seconds = self.handoff_s(self.rank - 1, content["tokens"])
            arrived = Moment((together,), seconds)
            message.left.name(arrived if seconds > 0.0 else message.ready)
        else:
            arrived = Moment((Moment((message.ready,), self.ring_s), self.current.tail, at(self.cpu_s)))
            message.left.name(message.ready)
        self.current.wait(arrived)
        return content

    def send_requests(self, requests: object) -> list[Work]:
        """The list of new requests, over gloo."""
        message = Message(requests, self.cpu_s, Moment())
        self.request_outbox.put(message)
        return [Work(lambda: self._meet(message))]

    def receive_requests(self) -> Any:
        """What the stage before sent."""
        return self._take(self.request_inbox).content

    def _take(self, inbox: queue.Queue[Message]) -> Message:
        asked = at(self.cpu_s)
        message = _next(inbox)
        message.taken.name(asked)
        self.cpu_s = max(self.cpu_s, message.sent_s)
        return message

    def _meet(self, message: Message) -> None:
        self.cpu_s = max(self.cpu_s, message.taken.seconds())


def _next(inbox: queue.Queue[Message]) -> Message:
    while True:
        try:
            return inbox.get(timeout=_LOOK_S)
        except queue.Empty:
            if FAILED.is_set():
                raise AnotherStageFailedError from None


def ring(size: int, handoff_s: Callable[[int, int], float], ring_s: float) -> list[Stage]:
    """`size` stages, each sending to the next and the last to the first."""
    boxes: list[queue.Queue[Message]] = [queue.Queue() for _ in range(size)]
    requests: list[queue.Queue[Message]] = [queue.Queue() for _ in range(size)]
    return [
        Stage(
            rank=rank,
            size=size,
            outbox=boxes[(rank + 1) % size],
            inbox=boxes[rank],
            request_outbox=requests[(rank + 1) % size],
            request_inbox=requests[rank],
            handoff_s=handoff_s,
            ring_s=ring_s,
        )
        for rank in range(size)
    ]
