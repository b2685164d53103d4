from __future__ import annotations

from collections.abc import Mapping

import pytest

from partitune.candidate import FlagValue
from partitune.engines.vllm.defaults import capture_sizes
from partitune.errors import SpecError
from partitune.hardware.gpus import GPUS

#: vLLM 0.33.0 config/vllm.py _set_cudagraph_sizes, docstring.
FINE = [1, 2, 4, *range(8, 256, 8)]


def sizes(
    gpu: str = "H200", tokens: int = 8192, seqs: int = 1024, flags: Mapping[str, FlagValue] | None = None
) -> list[int]:
    return list(capture_sizes({"max_num_batched_tokens": tokens, "max_num_seqs": seqs, **(flags or {})}, GPUS[gpu]))


def test_defaults_end_at_512_and_on_data_centre_blackwell_at_1024() -> None:
    assert sizes() == [*FINE, *range(256, 513, 16)]
    for gpu in ("B200", "GB200", "B300"):
        assert sizes(gpu) == [*FINE, *range(256, 1025, 16)]
    assert sizes("RTX-5090")[-1] == 512  # compute capability 12


def test_twice_the_sequences_at_most_and_the_sequences_themselves() -> None:
    assert sizes(seqs=4) == [1, 2, 4, 8]
    assert sizes(seqs=5) == [1, 2, 4, 5, 8]
    assert sizes(seqs=30) == [1, 2, 4, 8, 16, 24, 30, 32, 40, 48, 56]
    assert 500 in sizes(seqs=500)


def test_no_more_than_the_token_budget() -> None:
    assert sizes(tokens=20, seqs=16) == [1, 2, 4, 8, 16, 20]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"enforce_eager": True}, []),
        ({"max_cudagraph_capture_size": 0}, []),
        ({"max_cudagraph_capture_size": 20}, [1, 2, 4, 8, 16]),
        ({"cudagraph_capture_sizes": "[8, 1, 8, 9000]"}, [1, 8]),
        ({"cudagraph_capture_sizes": "2 16"}, [2, 16]),
        ({"performance_mode": "interactivity", "max_cudagraph_capture_size": 40}, [*range(1, 33), 40]),
    ],
)
def test_flags(flags: dict[str, FlagValue], expected: list[int]) -> None:
    assert sizes(flags=flags) == expected


def test_a_list_that_is_none() -> None:
    with pytest.raises(SpecError, match="cudagraph_capture_sizes: 'few'"):
        sizes(flags={"cudagraph_capture_sizes": "few"})
