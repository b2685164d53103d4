"""What Toy logs, and the names on its metrics page. Source: Toy 1.2 `program.py`."""

from __future__ import annotations

import re

from partitune.engines.readout import FailureKind, Head, LogWords, MetricsPage, Phase, Readout

_HEAD = re.compile(r"toy\[(?P<process>\w+)\] ")


class ToyReadout(Readout):
    """What a server of Toy says."""

    metrics = MetricsPage(
        prefix="toy_",
        counters={
            "prompt_tokens": "toy_prompt_tokens_total",
            "generation_tokens": "toy_output_tokens_total",
            "running": "toy_requests_running",
            "kv_blocks": "toy_pages",
        },
    )
    logs = LogWords(
        phases=(
            (Phase.READY, r"^serving$"),
            (Phase.CAPTURE, r"^planning pages"),
            (Phase.LOAD, r"^loading layers"),
            (Phase.RENDEZVOUS, r"^meeting"),
        ),
        failures={FailureKind.KV_TOO_SMALL: (r"^no room for pages",)},
        facts=(("kv_tokens", "", r"^room for (\d{1,15}) tokens"),),
        weights=r"^stage \d+ takes (\d[\d.]{0,20}) GiB",
    )

    def head(self, line: str) -> Head | None:
        """The process, in brackets."""
        head = _HEAD.match(line)
        return None if head is None else Head(head["process"], line[head.end() :])
