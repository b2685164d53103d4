"""What a measured window must show before its figures count, the same way whoever started the server.

Decision: a run in which requests failed, streams were cut, prompts came from the cache or another server answered looks
fast, and fast wins. So every window passes all gates or the trial is invalid, and the message names every gate it
missed, not the first. A gate whose figure the engine or the tool does not give says nothing. The load generator's file
alone decides nothing: it has to hold every metric that the study aims at, and what the study asked the tool to send.

Source of the limits: field reports of tuners that ranked 1 % successful runs first, and of prefix-cache hits that
doubled a throughput; vLLM itself warns from 1 % hits on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field

from partitune.engines.readout import Counters
from partitune.errors import BenchmarkFailed, Stalled
from partitune.execution.readout.bench_results import BenchResult, read_bench
from partitune.execution.server.setup import LoadCommands
from partitune.spec.workload import RandomWorkload

# The limits. Shares are of 1.
_COMPLETED_SHARE = 0.99  # of the requests sent, at least
_OUTPUT_SHARE = 0.95  # of the output tokens asked for, at least
_DURATION_S = 0.2  # shorter than this, start and end of the client are what is measured
_PREFIX_HIT_SHARE = 0.01  # of the tokens looked up, at most, where the load shares no prefix
_ACCEPTANCE_RATE = 0.05  # of drafted tokens, at least: a broken drafter still answers
_GAP_S = 60.0  # silence inside one stream, at most


def read_window(
    commands: LoadCommands, text: str, source: str, before: Counters | None, after: Counters | None
) -> BenchResult:
    """The result in `text` of the load of `commands`, with the engine's counters around it where they are known.

    Raises:
        BenchmarkFailed: it cannot be trusted, for all the reasons in the message.
    """
    load, requests = commands.load, commands.problem.load.requests
    window = read_bench(commands.tool.format, text, source, needed=commands.needed)
    # A tool draws lengths of its own: the least they can come to is asked for.
    least = 1 - load.range_ratio if isinstance(load, RandomWorkload) else 1.0
    check_window(
        window,
        before,
        after,
        requests=len(requests),
        output_tokens=int(least * sum(request.output_tokens for request in requests)),
        shared_prefix=not isinstance(load, RandomWorkload),
    )
    return window


def check_window(
    result: BenchResult,
    before: Counters | None,
    after: Counters | None,
    *,
    requests: int,
    output_tokens: int,
    shared_prefix: bool,
) -> None:
    """Pass the window or say all that is wrong with it.

    `requests` and `output_tokens` are what the tool was told to send and to ask for; `before` and `after` are the
    engine's counters around the window; `shared_prefix` says whether the load means to hit the prefix cache.

    Raises:
        BenchmarkFailed: at least one gate is missed.
    """
    grown = Counters() if before is None or after is None else _growth(before, after)
    reasons = [
        *_client_faults(result, requests, output_tokens),
        *_server_faults(result, grown, shared_prefix),
        *_drafter_faults(result, grown),
    ]
    if reasons:
        errors = f"; errors of requests: {' | '.join(result.errors)}" if result.errors else ""
        raise BenchmarkFailed(f"the window cannot be trusted: {'; '.join(reasons)}{errors}")


def _client_faults(result: BenchResult, requests: int, output_tokens: int) -> Iterator[str]:
    if result.sent is not None and result.sent != requests:
        yield f"the load generator sent {result.sent} requests instead of {requests}"
    if result.completed > requests:
        yield f"{result.completed} requests completed of {requests}: the result of another run?"
    if result.completed < _COMPLETED_SHARE * requests:
        yield f"only {result.completed} of {requests} requests completed, fewer than {_COMPLETED_SHARE:.0%}"
    if result.output_tokens < _OUTPUT_SHARE * output_tokens:
        yield f"only {result.output_tokens} of {output_tokens} output tokens came, fewer than {_OUTPUT_SHARE:.0%}"
    if result.duration_s < _DURATION_S:
        yield f"it took {result.duration_s:.3g} s, less than {_DURATION_S:g} s"
    if result.longest_gap_s is not None and result.longest_gap_s > _GAP_S:
        yield f"a stream stood still for {result.longest_gap_s:.0f} s, longer than {_GAP_S:g} s"


def _growth(before: Counters, after: Counters) -> Counters:
    """How far each counter went up; None where one of the two does not say."""
    pairs = {name: (value, asdict(after)[name]) for name, value in asdict(before).items()}
    return Counters(**{name: end - start for name, (start, end) in pairs.items() if None not in (start, end)})


def _server_faults(result: BenchResult, grown: Counters, shared_prefix: bool) -> Iterator[str]:
    generated, queries, hits = grown.generation_tokens, grown.prefix_queries, grown.prefix_hits
    if any(growth is not None and growth < 0 for growth in (generated, queries, hits)):
        yield "the engine's counters went down: it started anew during the window"
        return
    if generated is not None and generated < _OUTPUT_SHARE * result.output_tokens:
        yield (
            f"the engine generated {generated:.0f} tokens and the client received {result.output_tokens}: "
            "another server answered"
        )
    if not shared_prefix and queries and hits and hits > _PREFIX_HIT_SHARE * queries:
        yield (
            f"{hits / queries:.1%} of the prompt tokens came from the prefix cache, more than "
            f"{_PREFIX_HIT_SHARE:.0%} of a load that shares no prefix: the same prompts were sent before"
        )


def _drafter_faults(result: BenchResult, grown: Counters) -> Iterator[str]:
    """By what the tool says, else by the engine's counters."""
    rate = result.acceptance_rate
    if rate is None and grown.draft_tokens and grown.accepted_tokens is not None:
        rate = grown.accepted_tokens / grown.draft_tokens
    if rate is not None and rate < _ACCEPTANCE_RATE:
        yield f"{rate:.1%} of drafted tokens were accepted, fewer than {_ACCEPTANCE_RATE:.0%}"


@dataclass(slots=True)
class ProgressWatch:
    """Sees an engine that hangs while it looks healthy: requests run, and no token comes for `limit_s`."""

    limit_s: float
    _tokens: float | None = field(default=None, init=False)
    _since_s: float = field(default=0.0, init=False)

    def see(self, now_s: float, counters: Counters) -> None:
        """Take in a metrics page read at `now_s` of any steady clock.

        Raises:
            Stalled: graded by the seconds over the limit.
        """
        if counters.generation_tokens is None or counters.running is None:
            return
        tokens = counters.generation_tokens + (counters.prompt_tokens or 0)
        if tokens != self._tokens or counters.running == 0:
            self._tokens, self._since_s = tokens, now_s
        elif now_s - self._since_s > self.limit_s:
            idle_s = now_s - self._since_s
            raise Stalled(
                f"{counters.running:.0f} requests run and no token came for {idle_s:.0f} s, longer than "
                f"{self.limit_s:g} s",
                excess=idle_s - self.limit_s,
            )
