"""Whether tokens came one by one: else gaps between network reads would pass for gaps between tokens.

Decision: a proxy that collects, a client that is too busy to read, or an engine that sends several tokens at a time
make the median gap almost 0, which wins every comparison, and the highest gaps too high. What no forward pass fits into
is no gap. Then the inter-token latency is left out and the reason kept; time to the first token and per token still are
what a user waited, unless whole answers came at once. A study that aims at what is left out gets no figure, but why.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence

from partitune.errors import BenchmarkFailed

#: A gap that no forward pass fits into, in ms: below 0.1 always, below 1 where the mean is twenty times as long.
_NO_PASS_MS, _SHORT_MS, _SHORT_OF_MEAN = 0.1, 1.0, 0.05
#: Most gaps of that kind, of all; fewest gaps, of those that the tokens leave.
_SHORT_SHARE, _GAP_SHARE = 0.25, 0.9


def gaps(result: Mapping[str, object], source: str) -> list[float] | None:
    """Seconds between chunks of the streams, from the detailed lists of vLLM and SGLang; None: not in the file.

    Raises:
        BenchmarkFailed: one of them is no number of seconds.
    """
    streams = result.get("itls")
    if not isinstance(streams, list):
        return None
    seconds = [gap for stream in streams if isinstance(stream, list) for gap in stream]
    for gap in seconds:
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not 0 <= gap < 1e9:
            raise BenchmarkFailed(f"{source}: itls holds {reprlib.repr(gap)}; looked for seconds")
    return seconds


def unusable_metrics(
    metrics: Mapping[str, float], gaps_s: Sequence[float] | None, expected: int
) -> tuple[tuple[str, ...], str]:
    """How the names of metrics begin that say nothing, and why.

    Args:
        metrics: by our names.
        gaps_s: between chunks, where the tool lists them.
        expected: gaps that the tokens leave where each came by itself.
    """
    if (per_token_ms := metrics.get("tpot_p50_ms", _SHORT_MS)) < _NO_PASS_MS:
        return ("ttft_", "tpot_", "itl_"), f"answers came whole, not as streams ({per_token_ms:.2g} ms a token)"
    mean_ms, median_ms = metrics.get("itl_mean_ms", 0.0), metrics.get("itl_p50_ms", _SHORT_MS)
    short_ms = max(_NO_PASS_MS, min(_SHORT_MS, _SHORT_OF_MEAN * mean_ms))
    listed = gaps_s or ()
    short = sum(1000 * gap_s < short_ms for gap_s in listed)
    if listed and len(listed) < _GAP_SHARE * expected:
        why = f"{len(listed)} gaps, where {expected} lie between the tokens"
    elif short > _SHORT_SHARE * len(listed):
        why = f"{short} of {len(listed)} gaps are shorter than {short_ms:.2g} ms"
    elif median_ms < short_ms:
        why = f"half of the gaps are {median_ms:.2g} ms or less, at a mean of {mean_ms:.3g} ms"
    else:
        return (), ""
    return ("itl_",), f"streams came in bursts: {why}"
