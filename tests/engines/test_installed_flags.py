"""The installed engine's flags, from the recorded help of vLLM 0.32.0 (its flag lines; no prose)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partitune.engines.flags import FlagType
from partitune.engines.installed_flags import InstalledFlags, read_help
from partitune.engines.versions import Version
from partitune.engines.vllm.flags import FLAG_RELEASES, VLLM_FLAGS
from partitune.errors import SpecError
from tests.engine_output import recorded

HELP = recorded("serve_help.txt")


@pytest.fixture(scope="module")
def installed() -> InstalledFlags:
    return read_help(HELP, "vllm serve --help=all")


def test_the_table_of_releases_has_the_flags_of_the_real_engine(installed: InstalledFlags) -> None:
    long = {option[2:].replace("-", "_") for option in installed.options if option.startswith("--")}
    read = {name for name in FLAG_RELEASES.runs if FLAG_RELEASES.has([name], Version(0, 32))}
    of_the_parser = {"help", "json_arg", "json_arg.key1", "json_arg.key2.key3", "json_arg.key4"}
    assert {name for name in long if not name.startswith("no_")} - of_the_parser == read
    switches = [flag.name for flag in VLLM_FLAGS.values() if flag.type is FlagType.SWITCH and flag.name in read]
    assert [name for name in switches if f"--no-{name.replace('_', '-')}" not in installed.options] == []
    assert {"-tp", "-pp", "-cc", "-h"} <= set(installed.options)
    assert installed.options["--gdn-prefill-backend"] == ("flashinfer", "triton", "cutedsl", "aiter_flydsl")
    assert installed.options["--max-num-seqs"] == ()


def test_a_real_command_passes(installed: InstalledFlags) -> None:
    command = (
        "vllm serve models/moe16 --host 127.0.0.1 --port 8101 --load-format dummy --pipeline-parallel-size 2 "
        "--distributed-executor-backend mp -cc.mode=2 -cc.backend=eager --max-model-len 2048 --dtype float32 "
        "--max_num_batched_tokens 256 --no-enable-prefix-caching --seed -1 --profiler-config.torch_profiler_dir=traces"
    )
    installed.check([command.split()], "vllm")


def test_one_message_names_every_fault_once_with_the_nearest_name(installed: InstalledFlags) -> None:
    first = ("vllm", "serve", "m", "--num-scheduler-steps", "4", "--max-num-seqz=8", "--no-disable-log-stats")
    second = ("vllm", "serve", "m", "--max-num-seqz=9", "--kv-offloading-backend", "nativ", "--kv-cache-dtype=fp9")
    with pytest.raises(SpecError) as caught:
        installed.check([first, second], "vllm")
    lines = str(caught.value).splitlines()
    assert lines[0] == "vllm serve --help=all: the vllm installed here would refuse this study:"
    assert [line[:60] for line in lines[1:]] == [
        "  - it has no --num-scheduler-steps, did you mean --max-num-",
        "  - it has no --max-num-seqz, did you mean --max-num-seqs?",
        "  - it has no --no-disable-log-stats, did you mean --disable",
        "  - --kv-offloading-backend takes lmcache, native; found nat",
        "  - --kv-cache-dtype takes auto, bfloat16, float16, fp8, fp8",
    ]


def test_a_flag_that_a_description_mentions_is_not_one_that_exists() -> None:
    """argparse puts descriptions in a column of their own, or on lines further in."""
    made_up = "".join(f"  --flag-{letter} X  --ghost-{letter} is meant\n" for letter in "abcdefghijklmnopqrstu")
    found = read_help(made_up + "  --long-flag-name LONG\n                        --ghost-z turns it off\n", "help")
    assert len(found.options) == 22
    assert not [option for option in found.options if "ghost" in option]


@pytest.mark.parametrize("text", ["", "usage: vllm [-h]\n", "Traceback\nImportError: libcuda.so.1: cannot open\n"])
def test_what_is_no_help_text_is_said(text: str) -> None:
    with pytest.raises(SpecError, match=r"^vllm serve --help=all: looked for a help text with at least 20 flags"):
        read_help(text, "vllm serve --help=all")


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200), st.lists(st.text(max_size=12), max_size=6), st.integers(0, 2000))
def test_nothing_but_the_error_tree_is_raised(noise: str, words: list[str], cut: int) -> None:
    try:
        read_help(HELP[cut:] + noise, "help").check([words], "vllm")
        read_help(noise, "help")
    except SpecError:
        return
