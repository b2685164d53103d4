"""Requests in the engine, and the cohorts they decode in.

Decision: requests that sampled a token in the same step stay together until one of them ends, so the simulator counts
once per cohort what the engine counts per request. A cohort numbers the tokens it was scheduled for and the tokens that
came back; a member's own numbers follow from where it joined. Joining, leaving and ending cost something, a step of the
whole cohort does not.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

from partitune.simulation.request import Request


@dataclass(slots=True, eq=False)
class Cached:
    """One block of a shared text."""

    copies: list[Cached]  # all of the same content, oldest first; the first one is found
    users: int
    stale: int = 0  # times it is in the queue of free blocks but was taken out again

    def __post_init__(self) -> None:
        self.copies.append(self)


@dataclass(slots=True, eq=False)
class Stretch:
    """Positions of one request, given back in one go; the last one is forgotten first."""

    blocks: Sequence[int]


@dataclass(slots=True, eq=False)
class Block:
    """One block of one group of layers whose content can be found."""

    key: tuple[int, int, int]  # group, owner of the text, position
    users: int = 0


@dataclass(slots=True)
class Row:
    """The blocks of a request in the groups of one kind, by position: one a group, or none yet that can be found.

    None: the request holds no blocks there (any more).
    """

    blocks: list[tuple[Block, ...] | None]
    gone: int  # positions from the beginning that were given back
    named: int  # positions from the beginning whose content others find, as far as it is worth keeping


@dataclass(slots=True, eq=False)
class Live:
    """One request inside the engine."""

    request: Request
    sent_s: float
    number: int  # in order of arrival
    texts: tuple[tuple[int, int], ...]  # spans of its text: (whole blocks that end in it, owner), its own the last
    continued: bool  # another request's prompt begins with its prompt and answer
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
    junction: int = 0  # tokens of a cached prefix whose windows and states are to be kept on the way
    # Where one group keeps every token: blocks that others may ask for, how many, stretches that only it can find.
    shared: list[Cached] = field(default_factory=list)
    shared_blocks: int = field(init=False)
    places: list[list[Cached]] | None = None  # of the shared positions
    stretches: list[Stretch] = field(default_factory=list)
    # Where groups of layers differ: a row of blocks each, tokens that fit them, and tokens back at which some go.
    rows: list[Row] = field(default_factory=list)
    covered: int = 0
    trims_at: float = math.inf
    trim_keys: tuple[int, ...] = ()  # under which its cohort knows it in `trimming`
    seen_step: int = 0  # newest step whose tokens were back when it was last scheduled, when not in a cohort
    prompt: int = field(init=False)
    target: int = field(init=False)

    def __post_init__(self) -> None:
        self.prompt = self.request.prompt_tokens
        self.target = self.request.output_tokens
        reach = self.texts if self.continued else self.texts[:-1]
        self.shared_blocks = reach[-1][0] if reach else 0

    def owner(self, position: int) -> int:
        """Whose text the block at `position` is: up to its end, so with all that comes before."""
        for end, owner in self.texts:
            if position < end:
                return owner
        return self.texts[-1][1]

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
    def prompt_end(self) -> int:
        """Tokens of what it reads: its prompt, after a preemption with the output but for the last token."""
        return max(self.prompt, self.to_compute - 1)

    @property
    def processed(self) -> int:
        """Tokens whose step has come back."""
        if self.cohort is None:
            return self.computed - self.in_flight
        return self.to_compute - self.in_flight if self.in_flight else self.prompt + self.delivered - 1

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
    #: Delivered tokens modulo block size -> members behind whose windows a block ends then.
    trimming: dict[int, dict[Live, None]] = field(default_factory=dict)
    looked: int = 0  # delivered tokens up to which `trimming` was heeded
    lag: int = 0  # tokens of a member in flight when it was last scheduled

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

    def watch(self, live: Live, block_size: int, trims: Sequence[int]) -> None:
        """Note when a member that holds the blocks it should will need one, and give one back."""
        self.crossing.setdefault(crossing_key(live, block_size), {})[live] = None
        live.trim_keys = tuple((window - live.prompt - live.base + live.joined) % block_size for window in trims)
        for key in live.trim_keys:
            self.trimming.setdefault(key, {})[live] = None

    def remove(self, live: Live, block_size: int) -> None:
        """Take `live` out; what it has in flight is still delivered."""
        live.computed = live.context
        self.context -= live.computed
        del self.members[live]
        self.crossing.get(crossing_key(live, block_size), {}).pop(live, None)
        for key in live.trim_keys:
            self.trimming[key].pop(live, None)
        live.trim_keys = ()
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
