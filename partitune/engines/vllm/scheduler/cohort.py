"""Requests in the engine, and the cohorts they decode in.

Decision: requests that sampled a token in the same step stay together until one of them ends, so the simulator counts
once per cohort what the engine counts per request. A cohort numbers the tokens it was scheduled for and the tokens that
came back; a member's own numbers follow from where it joined. Joining, leaving and ending cost something, a step of the
whole cohort does not.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from partitune.simulation.request import Request


@dataclass(slots=True, eq=False)
class Cached:
    """One block of a shared prefix in every full-attention group, or the states at one position."""

    copies: list[Cached]  # all of the same content, oldest first; the first one is found
    size: int  # KV blocks
    users: int
    step: int  # that wrote it
    stale: int = 0  # times it is in the queue of free blocks but was taken out again

    def __post_init__(self) -> None:
        self.copies.append(self)


@dataclass(slots=True, eq=False)
class Stretch:
    """Positions of one request, given back in one go; the last one is forgotten first."""

    blocks: Sequence[int]


@dataclass(slots=True, eq=False)
class Live:
    """One request inside the engine."""

    request: Request
    sent_s: float
    number: int  # in order of arrival
    cohort: Cohort | None = None  # None: waiting, reading, or only waiting for its last token
    reading: bool = False  # running, its prompt (after a preemption: and output) not read to its end
    joined: int = 0  # tokens the cohort had been scheduled for before
    base: int = 0  # own tokens scheduled before joining
    segments: list[tuple[Cohort, int, int]] = field(default_factory=list)  # (cohort, first token, one past the last)
    computed: int = 0  # prompt (and, after a preemption, output) tokens scheduled; kept while not in a cohort
    in_flight: int = 0  # prompt tokens scheduled and not yet back
    held: int = 0  # KV blocks
    last_step: int = 0  # newest step it took part in, when not in a cohort
    eligible_step: int = 0  # not before this step again; outlives a preemption, as in the engine
    preempted: bool = False  # ever
    deferred: bool = False  # passed over while waiting for stale tokens, and not admitted since
    # Prefix cache: blocks that others know too, those that only it knows and gave back, and how long the first are.
    shared: list[Cached] = field(default_factory=list)
    stretches: list[Stretch] = field(default_factory=list)
    shared_blocks: int = 0
    junction: int = 0  # tokens of a cached prefix whose states are to be kept on the way
    seen_step: int = 0  # newest step whose tokens were back when it was last scheduled, when not in a cohort
    prompt: int = field(init=False)
    target: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.request.prompt_tokens
        self.target = self.request.output_tokens

    @property
    def sampled(self) -> int:
        """How many tokens were sampled so far, those in flight included."""
        return self.base if self.cohort is None else self.base + self.cohort.scheduled - self.joined

    @property
    def delivered(self) -> int:
        """How many of its tokens have come back to the scheduler."""
        done = sum(min(max(cohort.delivered, first), end) - first for cohort, first, end in self.segments)
        return done if self.cohort is None else done + max(0, self.cohort.delivered - self.joined)

    def token_times(self) -> list[float]:
        """When each token of the finished request reached its client, in seconds since the run began."""
        times: list[float] = []
        for cohort, first, end in self.segments:
            times += cohort.times[first:end]
        return times[: self.target]

    @property
    def cached_tokens(self) -> int:
        """Tokens whose full blocks the prefix cache knows.

        A chunk's are known when it is scheduled. Decoded ones are as soon as a step is scheduled that follows their
        coming back, the very last one excepted when it came back since.
        """
        if self.reading:
            return self.computed
        seen = self.seen_step if self.cohort is None else self.cohort.seen_step
        then = sum(bisect_right(cohort.steps, seen, first, end) - first for cohort, first, end in self.segments)
        if self.cohort is not None:
            then += bisect_right(self.cohort.steps, seen, self.joined) - self.joined
        return self.prompt + max(then, self.delivered - 1)

    @property
    def to_compute(self) -> int:
        """Tokens whose KV must exist before the next token can be sampled."""
        return self.prompt + self.base

    @property
    def context(self) -> int:
        """Tokens computed by a cohort member, its newest sample not included."""
        return self.prompt + self.sampled - 1


@dataclass(slots=True, eq=False)
class Cohort:
    """Requests that sample in the same steps."""

    members: dict[Live, None] = field(default_factory=dict)  # an ordered set
    scheduled: int = 0
    delivered: int = 0
    times: list[float] = field(default_factory=list)  # when each delivered token reached the clients
    context: int = 0  # sum of the members' contexts
    token_s: float = 0.0  # when the newest token is on every stage
    eligible_step: int = 0
    last_step: int = 0
    seen_step: int = 0  # newest step whose tokens were back when it was last scheduled
    steps: list[int] = field(default_factory=list)  # that each token was scheduled in; kept for the prefix cache only
    ending: dict[int, list[Live]] = field(default_factory=dict)  # delivered tokens -> members that then have all theirs
    will_stop: dict[int, list[Live]] = field(default_factory=dict)  # delivered tokens -> members that then lack one
    #: Members that may lack one token only: not scheduled again while that one is in flight.
    stopping: list[Live] = field(default_factory=list)
    fresh: list[Live] = field(default_factory=list)  # joined, and not yet in `crossing`
    #: Scheduled tokens modulo block size -> members that need a new block then.
    crossing: dict[int, dict[Live, None]] = field(default_factory=dict)

    def add(self, live: Live) -> None:
        """Let `live` take part in the step being scheduled and all that follow."""
        live.cohort = self
        live.joined = self.scheduled
        self.members[live] = None
        self.context += live.prompt + live.base - 1
        self.fresh.append(live)
        end = live.joined + live.target - live.base
        if end > live.joined:
            self.ending.setdefault(end, []).append(live)
        if live.request.stops_early:
            return
        if end - 1 <= max(self.delivered, live.joined):
            self.stopping.append(live)
        else:
            self.will_stop.setdefault(end - 1, []).append(live)

    def remove(self, live: Live, block_size: int) -> None:
        """Take `live` out; what it has in flight is still delivered."""
        live.computed = live.context
        self.context -= live.computed
        del self.members[live]
        self.crossing.get(crossing_key(live, block_size), {}).pop(live, None)
        if live in self.fresh:
            self.fresh.remove(live)
        end = live.joined + live.target - live.base
        for stop in (self.stopping, self.will_stop.get(end - 1, [])):
            if live in stop:
                stop.remove(live)
        if end > self.scheduled:
            self.ending[end].remove(live)
        live.segments.append((self, live.joined, self.scheduled))
        live.base += self.scheduled - live.joined
        live.last_step = self.last_step
        live.seen_step = self.seen_step
        live.eligible_step = self.eligible_step
        live.cohort = None


def crossing_key(live: Live, block_size: int) -> int:
    """`scheduled` modulo the block size at which the member's next token opens a new block."""
    return (live.joined - live.base - live.prompt + 1) % block_size
