"""What a measured window must show before its figures count, the same way whoever started the server.

Decision: a run in which requests failed, streams were cut, prompts came from the cache or another server answered looks
fast, and fast wins. So every window passes all gates or the trial is invalid, and the message names every gate it
missed, not the first. Whatever has to be some amount may be neither less nor more: a count that is a thousand times too
high looks better still. A gate whose figure the engine or the tool does not give says nothing. The load generator's
file alone decides nothing: it has to hold every metric that the study aims at, and what the study asked the tool to
send.

Source of the limits: field reports of tuners that ranked 1 % successful runs first, and of prefix-cache hits that
doubled a throughput; vLLM itself warns from 1 % hits on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from partitune.engines.readout import Counters
from partitune.errors import BenchmarkFailed, Stalled
from partitune.execution.readout.bench_results import BenchResult, read_bench
from partitune.execution.server.setup import LoadCommands
from partitune.spec.workload import RandomWorkload

# The limits. Shares are of 1.
_COMPLETED_SHARE = 0.99  # of the requests sent, at least
_SERVED_SHARE = 0.05  # that the engine may have generated less or more than the client received
#: Slack of the prompts that a tool says it made: a share, and tokens a request for what tokenizers put at the ends.
_TOKENIZER_SHARE, _TOKENIZER_TOKENS = 0.1, 16
#: The engine may have read so many times fewer or more: SGLang's tool decodes random tokens to text, which the engine's
#: tokenizer cuts anew (0.5.23 `benchmark/datasets/random.py`).
_CUT_ANEW = 2
_DURATION_S = 0.2  # shorter than this, start and end of the client are what is measured
_LATENCY_SHARE = 1.1  # of the whole window, at most: what is longer has another unit
_PREFIX_HIT_SHARE = 0.01  # of the tokens looked up, at most, where the load shares no prefix
_ACCEPTANCE_RATE = 0.05  # of drafted tokens, at least: a broken drafter still answers
_GAP_S = 60.0  # silence inside one stream, at most


@dataclass(frozen=True, slots=True)
class Asked:
    """What a tool was told to send: of every request the fewest and the most tokens it may have drawn."""

    prompts: Sequence[tuple[int, int]]
    answers: Sequence[tuple[int, int]]
    full_length: bool = True  # answers run to the length asked for; else the model may end them before
    shared_prefix: bool = False  # the load means to hit the prefix cache

    @classmethod
    def of(cls, commands: LoadCommands) -> Asked:
        """By the load of `commands`: a tool draws the lengths of a random one by itself."""
        load, requests = commands.load, commands.problem.load.requests
        if not isinstance(load, RandomWorkload):
            prompts = [(request.prompt_tokens, request.prompt_tokens) for request in requests]
            answers = [(request.output_tokens, request.output_tokens) for request in requests]
            return cls(prompts, answers, commands.full_length, shared_prefix=True)
        (fewest, most), answer = (_drawn(*load.bounds(mean)) for mean in (load.prompt_tokens, load.output_tokens))
        prompt, shared = (load.prefix_tokens + fewest, load.prefix_tokens + most), load.prefix_tokens > 0
        return cls([prompt] * len(requests), [answer] * len(requests), commands.full_length, shared_prefix=shared)


def _drawn(low: int, high: int) -> tuple[int, int]:
    """Nothing is drawn below a token; the ratio that SGLang is told is rounded, which may cost the shortest one."""
    return max(1, low - (low < high)), high


def read_window(
    commands: LoadCommands, text: str, source: str, before: Counters | None, after: Counters | None
) -> BenchResult:
    """The result in `text` of the load of `commands`, with the engine's counters around it where they are known.

    Raises:
        BenchmarkFailed: it cannot be trusted, for all the reasons in the message.
    """
    window = read_bench(commands.tool.format, text, source, needed=commands.needed)
    check_window(window, before, after, Asked.of(commands))
    return window


def check_window(result: BenchResult, before: Counters | None, after: Counters | None, asked: Asked) -> None:
    """Pass the window or say all that is wrong with it; `before` and `after` are the engine's counters around it.

    Raises:
        BenchmarkFailed: at least one gate is missed.
    """
    grown = Counters() if before is None or after is None else _growth(before, after)
    reasons = [
        *_client_faults(result, asked),
        *_token_faults(result, asked),
        *_server_faults(result, grown, asked.shared_prefix),
        *_drafter_faults(result, grown),
    ]
    if reasons:
        errors = f"; errors of requests: {' | '.join(result.errors)}" if result.errors else ""
        raise BenchmarkFailed(f"the window cannot be trusted: {'; '.join(reasons)}{errors}")


def _client_faults(result: BenchResult, asked: Asked) -> Iterator[str]:
    requests = len(asked.answers)
    if result.sent is not None and result.sent != requests:
        yield f"the load generator sent {result.sent} requests instead of {requests}"
    if result.completed > requests:
        yield f"{result.completed} requests completed of {requests}: the result of another run?"
    if result.completed < _COMPLETED_SHARE * requests:
        yield f"only {result.completed} of {requests} requests completed, fewer than {_COMPLETED_SHARE:.0%}"
    if result.duration_s < _DURATION_S:
        yield f"it took {result.duration_s:.3g} s, less than {_DURATION_S:g} s"
    longest = max((figure for name, figure in result.metrics.items() if name.endswith("_ms")), default=0.0) / 1000
    if longest > _LATENCY_SHARE * result.duration_s:
        yield f"a latency of {longest:.3g} s is longer than the whole window of {result.duration_s:.3g} s"
    if result.longest_gap_s is not None and result.longest_gap_s > _GAP_S:
        yield f"a stream stood still for {result.longest_gap_s:.0f} s, longer than {_GAP_S:g} s"


def _token_faults(result: BenchResult, asked: Asked) -> Iterator[str]:
    """Counts of the requests that completed: answers are as long as they were asked for, prompts nearly so."""
    least, most = _sums(asked.answers, result.completed)
    least = least if asked.full_length else result.completed
    if not least <= result.output_tokens <= most:
        yield f"{result.output_tokens} output tokens came, asked for were {_amount(least, most)}"
    fewest, longest = _sums(asked.prompts, result.completed)
    extra = _TOKENIZER_TOKENS * result.completed
    least = max(result.completed, int(fewest * (1 - _TOKENIZER_SHARE)) - extra)
    most = int(longest * (1 + _TOKENIZER_SHARE)) + extra
    if not least <= result.input_tokens <= most:
        yield (
            f"{result.input_tokens} input tokens were sent, asked for were {_amount(fewest, longest)}, give or take "
            f"{_TOKENIZER_SHARE:.0%} and {_TOKENIZER_TOKENS} a request for the tokenizer"
        )


def _sums(lengths: Sequence[tuple[int, int]], completed: int) -> tuple[int, int]:
    """The fewest and the most tokens of any `completed` of them."""
    least, most = (sorted(ends) for ends in zip(*lengths, strict=True))
    return sum(least[:completed]), sum(most[max(0, len(most) - completed) :])


def _amount(least: int, most: int) -> str:
    return str(least) if least == most else f"{least} to {most}"


def _growth(before: Counters, after: Counters) -> Counters:
    """How far each counter went up; None where one of the two does not say."""
    pairs = {name: (value, asdict(after)[name]) for name, value in asdict(before).items()}
    return Counters(**{name: end - start for name, (start, end) in pairs.items() if None not in (start, end)})


def _server_faults(result: BenchResult, grown: Counters, shared_prefix: bool) -> Iterator[str]:
    generated, queries, hits = grown.generation_tokens, grown.prefix_queries, grown.prefix_hits
    if any(growth is not None and growth < 0 for growth in (generated, queries, hits)):
        yield "the engine's counters went down: it started anew during the window"
        return
    if generated is not None and abs(generated - result.output_tokens) > _SERVED_SHARE * result.output_tokens:
        who = "another server answered" if generated < result.output_tokens else "others used it too"
        yield f"the engine generated {generated:.0f} tokens and the client received {result.output_tokens}: {who}"
    read, sent, extra = grown.prompt_tokens, result.input_tokens, _TOKENIZER_TOKENS * result.completed
    if read is not None and not sent / _CUT_ANEW - extra <= read <= sent * _CUT_ANEW + extra:
        yield f"the engine read {read:.0f} prompt tokens and the client sent {sent}"
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
    if rate is not None and not _ACCEPTANCE_RATE <= rate <= 1:
        wrong = f"fewer than {_ACCEPTANCE_RATE:.0%}" if rate < _ACCEPTANCE_RATE else "more than all"
        yield f"{rate:.1%} of drafted tokens were accepted, {wrong}"


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
