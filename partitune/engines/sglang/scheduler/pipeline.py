"""SGLang's pipeline loop in virtual time: when a slot's batch runs on each stage, and when its tokens are back.

Decision: every stage runs one loop of CPU calls over three streams, and what it waits for is fixed by the order of the
calls, so a slot's times follow from a few maxima over those of earlier slots. Stage p in slot s needs stage p - 1 in
slot s + 1 (the sampled tokens go round the ring one slot behind), hence a wavefront: when stage 0 does slot t, stage p
does slot t - p. Within a wavefront stages with an even number send tokens first, the odd ones receive first.

By default a hand-off overlaps nothing: the stream that sends batch i has waited for batch i, and batch i + 1 waits for
that stream. With `comm_overlap` messages have a stream of their own; a decode (a CUDA graph) still waits for the send
before, and a stage in the middle still receives batch i + 1 behind its wait for batch i.

Rules of the transport (gloo, NCCL; not read in SGLang): a CPU message is taken when the receiver asks and keeps the
sender waiting until then; a hand-off that takes no time needs no partner; sampled tokens, few bytes, wait for nobody.

Source: SGLang 0.5.23 `srt/managers/scheduler_pp_mixin.py` (event_loop_pp and what it calls), with one stage
`srt/managers/scheduler.py` (event_loop_normal);
`srt/distributed/parallel_state.py` (send_tensor_dict, recv_tensor_dict).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from partitune.engines.sglang.scheduler.settings import SglangSettings
from partitune.simulation.run import Overheads


class Turn:
    """One slot in one round. Lists have one entry per stage; times are seconds since the run began."""

    __slots__ = (
        "asked", "compute", "dispatch_s", "end", "graph", "left", "out_asked", "out_ready", "out_sent", "ready",
        "requests_sent", "sent", "silent", "start_s", "transfer",
    )  # fmt: skip

    def __init__(self, stages: int) -> None:
        self.compute: Sequence[float] = ()  # empty: nothing to run
        self.transfer: Sequence[float] = ()  # one entry per boundary
        self.graph = False  # a decode: it replays a CUDA graph
        self.silent = False  # its output is not sent round
        self.dispatch_s = self.start_s = 0.0  # on stage 0: decided, computing
        blank = [0.0] * stages
        self.requests_sent = blank.copy()  # the CPU has passed new requests on
        self.asked, self.sent = blank.copy(), blank.copy()  # the CPU asks for hidden states, hands them over
        self.ready, self.left = blank.copy(), blank.copy()  # the stream has hidden states to send, is rid of them
        self.end = blank.copy()  # of the computation
        self.out_asked, self.out_sent = blank.copy(), blank.copy()  # the same for sampled tokens
        self.out_ready = blank.copy()


@dataclass(slots=True, eq=False)
class _Stage:
    """Clocks of one stage: when its CPU and its streams are done with all they were given."""

    cpu: float = 0.0
    forward: float = 0.0  # the stream that computes
    copy: float = 0.0  # the stream that copies sampled tokens to the CPU
    messages: float = 0.0  # the stream that messages wait on: the scheduler's, with `comm_overlap` their own
    arrived: float = 0.0  # what the next computation waits for on that stream: hidden states,
    fence: float = 0.0  # and a decode's send
    copied: float = 0.0  # the sampled tokens of this slot are in the CPU's memory
    proxy: Turn | None = None  # whose hand-off has not been waited for
    output: Turn | None = None  # whose sampled tokens' send has not been waited for
    held: Turn | None = None  # whose tokens came in the slot before and go on in this one
    came: Turn | None = None  # whose tokens came in this slot


class SglangPipeline:
    """All stages of an engine."""

    def __init__(self, settings: SglangSettings, overheads: Overheads) -> None:
        self._last = settings.stages - 1
        self._slots = settings.slots
        self._depth = settings.pp_async_batch_depth
        self._own_stream = settings.comm_overlap
        self._overheads = overheads
        self._clocks = [_Stage() for _ in range(settings.stages)]
        self._turns: dict[int, Turn] = {}
        self._front = 0  # stage 0's slot, counted from the start

    @property
    def now(self) -> float:
        """Stage 0's CPU clock, in seconds since the run began."""
        return self._clocks[0].cpu

    def wait_until(self, seconds: float) -> None:
        """Stage 0 has nothing to do until then."""
        self._clocks[0].cpu = max(self._clocks[0].cpu, seconds)

    def push(self, turn: Turn) -> None:
        """Stage 0's next slot; afterwards `now` is when the results that it waits for in that slot are processed."""
        if self._last == 0:
            self._run_alone(turn)
            return
        front, early = self._front, self._depth > 0
        self._turns[front] = turn
        cells = [(stage, front - stage) for stage in range(min(self._last, front) + 1)]
        for stage, slot in cells:
            self._take(stage, slot)
        for stage, slot in cells:
            if not early:
                self._launch(stage, slot)
            self._settle_tokens(stage)
            if stage % 2 == 0:
                self._send_tokens(stage, slot)
        for stage, slot in cells[1::2]:
            self._receive_tokens(stage, slot)
            self._send_tokens(stage, slot)
        for stage, slot in cells[::2]:
            self._receive_tokens(stage, slot)
        for stage, slot in cells:
            if early:
                self._launch(stage, slot)
            self._hand_over(stage, slot)
        self._front += 1
        self._turns.pop(front - self._slots - 2 * self._last - 2, None)

    def _run_alone(self, turn: Turn) -> None:
        """The loop without a pipeline: decide, compute, process."""
        clocks = self._clocks[0]
        clocks.cpu += self._overheads.engine_step_s if turn.compute else self._overheads.empty_step_s
        turn.dispatch_s = turn.start_s = clocks.cpu
        if turn.compute:
            turn.end[0] = clocks.cpu + turn.compute[0]
            clocks.cpu = turn.end[0] + self._overheads.d2h_s

    def _running(self, slot: int) -> Turn | None:
        turn = self._turns.get(slot)
        return turn if turn is not None and turn.compute else None

    def _schedule(self, clocks: _Stage) -> float:
        """The scheduler's stream, which waits for nothing where messages have one of their own."""
        return 0.0 if self._own_stream else clocks.messages

    def _take(self, stage: int, slot: int) -> None:
        """Requests in and on, the decision, hidden states asked for."""
        clocks, turn = self._clocks[stage], self._turns[slot]
        cpu = clocks.cpu
        if stage > 0:
            cpu = max(cpu, turn.requests_sent[stage - 1])
        if stage < self._last:
            if slot > 0:
                cpu = max(cpu, self._clocks[stage + 1].cpu)  # the next stage begins the slot before
            turn.requests_sent[stage] = cpu
        cpu += self._overheads.engine_step_s if turn.compute else self._overheads.empty_step_s
        if stage == 0:
            turn.dispatch_s = cpu
        elif turn.compute:
            before = stage - 1
            turn.asked[stage] = cpu
            cpu = max(cpu, turn.sent[before])
            seconds = turn.transfer[before]
            clocks.arrived = clocks.messages = max(turn.ready[before], clocks.messages, cpu) + seconds
            turn.left[before] = clocks.arrived if seconds > 0.0 else turn.ready[before]
        clocks.cpu = cpu

    def _launch(self, stage: int, slot: int) -> None:
        """Wait for the hand-off before, then compute."""
        clocks, turn = self._clocks[stage], self._turns[slot]
        before, clocks.proxy = clocks.proxy, None
        if before is not None:
            clocks.cpu = max(clocks.cpu, before.asked[stage + 1])
            clocks.messages = max(clocks.messages, before.left[stage])
            if before.graph:
                clocks.fence = clocks.messages
        if turn.compute:
            begin = max(clocks.cpu, clocks.forward, self._schedule(clocks), clocks.arrived, clocks.fence)
            if stage == 0:
                turn.start_s = begin
            clocks.forward = turn.end[stage] = begin + turn.compute[stage]

    def _send_tokens(self, stage: int, slot: int) -> None:
        """Sampled tokens to the next stage: the last stage's own, the others' what came in the slot before."""
        clocks = self._clocks[stage]
        going = self._running(slot - self._depth) if stage == self._last else clocks.held
        if going is None or going.silent:
            return
        if stage == self._last:
            clocks.messages = max(clocks.messages, going.end[stage])
        going.out_sent[stage] = clocks.cpu
        going.out_ready[stage] = max(clocks.messages, clocks.cpu)
        clocks.output = going

    def _settle_tokens(self, stage: int) -> None:
        """Wait for the send of the slot before."""
        clocks = self._clocks[stage]
        before, clocks.output = clocks.output, None
        if before is not None:
            clocks.cpu = max(clocks.cpu, before.out_asked[stage + 1 if stage < self._last else 0])
            clocks.messages = max(clocks.messages, before.out_ready[stage])

    def _receive_tokens(self, stage: int, slot: int) -> None:
        """Sampled tokens of the batch that ran L - 1 slots before."""
        clocks = self._clocks[stage]
        due = self._running(slot + 1 - self._slots)
        clocks.copied, clocks.came = 0.0, None
        if due is None:
            return
        if due.silent:
            clocks.copied = self._schedule(clocks)
            return
        before = stage - 1 if stage else self._last
        due.out_asked[stage] = clocks.cpu
        clocks.cpu = max(clocks.cpu, due.out_sent[before])
        clocks.messages = max(due.out_ready[before] + self._overheads.broadcast_s, clocks.messages, clocks.cpu)
        clocks.copy = max(clocks.copy, clocks.messages)
        if self._overheads.d2h_s:
            clocks.copy = max(clocks.copy, clocks.cpu) + self._overheads.d2h_s
        clocks.copied = clocks.copy
        clocks.came = due

    def _hand_over(self, stage: int, slot: int) -> None:
        """Wait for the sampled tokens, process them, then send this slot's hidden states on."""
        clocks, turn = self._clocks[stage], self._turns[slot]
        clocks.cpu = max(clocks.cpu, clocks.copied)
        clocks.held = clocks.came
        if stage < self._last and turn.compute:
            clocks.messages = max(clocks.messages, turn.end[stage])
            turn.sent[stage] = clocks.cpu
            turn.ready[stage] = max(clocks.messages, clocks.cpu)
            clocks.proxy = turn
