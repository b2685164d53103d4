"""The load a candidate is measured under: random requests, or a recorded trace.

Decision: a load is either closed (so many requests in flight) or open (so many arrive a second), never both and never
neither: the two answer different questions, and a rate silently capped by a concurrency measures the cap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from partitune.spec.faults import Fault
from partitune.spec.strict_model import StrictModel, allowed, number, whole

MAX_REQUESTS = 1_000_000
_MAX_TOKENS = 10_000_000  # a context of ten million tokens is the longest announced


class RandomWorkload(StrictModel):
    """Requests of random tokens, greedy, running to their full length. The defaults are a short chat load."""

    kind: Literal["random"] = "random"
    requests: Annotated[int, whole(1, MAX_REQUESTS, "requests in all")] = 128
    prompt_tokens: Annotated[int, whole(1, _MAX_TOKENS, "tokens of a prompt, on average")] = 1024
    output_tokens: Annotated[int, whole(1, _MAX_TOKENS, "tokens generated a request, on average")] = 128
    range_ratio: Annotated[
        float, number(0, 1, "0.2: lengths vary evenly by up to 20 % to both sides of the average", below=True)
    ] = 0.0
    concurrency: Annotated[int | None, whole(1, MAX_REQUESTS, "closed load: requests in flight")] = None
    request_rate_req_s: Annotated[float | None, number(0, 1e6, "open load: arrivals a second", above=True)] = None
    burstiness: Annotated[
        float, number(0, 1e3, "shape of the gaps of an open load: 1 Poisson, less is burstier", above=True)
    ] = 1.0

    def faults(self) -> Iterator[Fault]:
        """Both loads or none; burstiness of a closed load."""
        if (self.concurrency is None) == (self.request_rate_req_s is None):
            found = "neither concurrency nor request_rate_req_s" if self.concurrency is None else "both"
            text = f"found {found}; allowed: concurrency (requests in flight) or request_rate_req_s (arrivals a second)"
            yield Fault((), text)
        if self.request_rate_req_s is None and "burstiness" in self.model_fields_set and self.burstiness != 1.0:
            yield Fault(("burstiness",), "found without request_rate_req_s; allowed: only for an open load")


class TraceWorkload(StrictModel):
    """Requests replayed from a file at their recorded times."""

    kind: Literal["trace"]
    file: Annotated[str, allowed("the path of a trace file, relative to this file", min_length=1, max_length=4096)]
    requests: Annotated[int | None, whole(1, MAX_REQUESTS, "only the first ones; all if left out")] = None


Workload = Annotated[RandomWorkload | TraceWorkload, Field(discriminator="kind")]
