"""Recorded output of real engines, and log lines spelled as the engines spell them."""

from __future__ import annotations

from pathlib import Path

from partitune.engines.sglang.logs import SglangReadout
from partitune.engines.vllm.logs import VllmReadout

VLLM, SGLANG = VllmReadout(), SglangReadout()

FOLDER = Path(__file__).parent / "data" / "engine_output"


def recorded(name: str) -> str:
    """Text of a recorded file of vLLM 0.32.0; its README says how each was made."""
    return (FOLDER / f"vllm_0.32.0_{name}").read_text(encoding="utf-8")


def vllm(second: int, process: str, message: str, level: str = "ERROR") -> str:
    """A record of vLLM 0.32.0's log (`logger.py`, _FORMAT) at `second` of one minute."""
    head = f"({process} pid=44) {level} 11-29 20:27:{second:02} [multiproc_executor.py:953] "
    return "".join(f"{head}{line}\n" for line in message.split("\n"))


def sglang(second: int, ranks: str, message: str) -> str:
    """A record of SGLang 0.5.23's log (`srt/utils/common.py`, configure_logger); `ranks` like ` PP1 TP0`."""
    return f"[2026-11-29 20:27:{second:02}{ranks}] {message}\n"


VLLM_READY = "INFO:     Application startup complete.\n"
