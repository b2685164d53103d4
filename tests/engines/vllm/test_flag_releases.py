"""Which release has which flag, as benchmarks/read_flags.py read it in the releases' own sources."""

from __future__ import annotations

import pytest

from benchmarks.read_flags import flags
from partitune.engines.deployment import Deployment
from partitune.engines.versions import Version
from partitune.engines.vllm.flags import FLAG_RELEASES, OTHER_NAMES, REMOVED_FLAGS, VLLM_FLAGS
from partitune.engines.vllm.rules import check_vllm
from partitune.hardware.parallelism import Layout
from tests.small_models import H200, architecture


def test_every_flag_of_the_newest_release_is_known_and_no_other() -> None:
    newest = FLAG_RELEASES.span[1]
    assert newest == Version(0, 33)
    held = {name for name in FLAG_RELEASES.runs if FLAG_RELEASES.has([name], newest)}
    assert held == {*VLLM_FLAGS, *OTHER_NAMES}
    assert not held & REMOVED_FLAGS.keys()


def faults(version: str, name: str, value: bool | int | float | str) -> list[str]:
    start = Deployment(version, architecture("ffff"), Layout(pp=2), H200, {name: value})
    return [fault.message for fault in check_vllm(start) if name in fault.message]


@pytest.mark.parametrize(
    ("version", "name", "value", "message"),
    [
        ("0.33.0", "monokernel", True, ""),
        ("0.33.0", "sleep_mode_backend", "cumem", ""),
        ("0.33.0", "watchdog_config", "{}", ""),
        ("0.32.0", "monokernel", True, "monokernel: vLLM 0.32.0 does not have it yet; it comes after 0.32.0"),
        ("0.30.0", "max_num_active_seqs", 8, "vLLM 0.30.0 does not have it yet; it comes after 0.30.0"),
        ("0.26.0", "max_num_partial_prefills", 2, ""),
        ("0.27.1", "max_num_partial_prefills", 2, "vLLM 0.27.1 no longer has it, it left by 0.27.1"),
        ("0.12.0", "monokernel", True, ""),  # older than any that was read
        ("0.40.0", "monokernel", True, ""),
        ("0.33.0", "monokernel", 3, "monokernel: 3 is not true or false"),
    ],
)
def test_a_flag_is_held_against_its_release(version: str, name: str, value: bool | int | str, message: str) -> None:
    found = faults(version, name, value)
    assert len(found) == bool(message)
    assert all(message in fault for fault in found)


def test_flags_are_read_in_calls_and_in_fields_of_the_front_end() -> None:
    text = """
class FrontendArgs(BaseFrontendArgs):
    host: str | None = None
    note = "no field"
class Other:
    hidden: int = 0
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--api-server-count", "-asc", type=int)
    group.add_argument(
        "--gpu-memory-utilization", "--device-memory-utilization", dest="gpu_memory_utilization", **kwargs["--no"]
    )
"""
    assert flags(text) == {"host", "api_server_count", "gpu_memory_utilization", "device_memory_utilization"}
