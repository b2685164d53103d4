"""A scripted `vllm`: real processes, real HTTP, the real engine's words, and misbehaviour on demand."""

from __future__ import annotations

import sys
from pathlib import Path

#: Words that start it: without site-packages it is up in a fifth of a second.
PROGRAM = (sys.executable, "-S", "-E", str(Path(__file__).with_name("vllm.py")))
#: Environment variable that says how to misbehave: acts of `serving.py` and `bench.py`, with commas in between.
ACT = "FAKE_ENGINE_ACT"
