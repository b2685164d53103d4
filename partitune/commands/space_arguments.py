"""The arguments that name a search space: a file, or flags without one, and what is set over it.

Decision: every command about a deployment takes the same words, so that what was searched can be explained, solved,
launched and submitted by changing the command alone.
"""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any

from partitune.errors import SpecError

if TYPE_CHECKING:  # for annotations only: it costs a good part of a second
    from partitune.spec.search_space import SearchSpace


#: Arguments of the form without YAML: name -> (type, metavar, help).
_NO_YAML: dict[str, tuple[Any, str, str]] = {
    "model": (str, "MODEL", "a catalog name, or the path of a config.json"),
    "gpu": (str, "GPU", "GPU type, such as H200"),
    "nodes": (int, "N", "machines"),
    "gpus_per_node": (int, "N", "GPUs in each machine"),
    "tp": (int, "N", "tensor-parallel size: GPUs per stage; without it and --pp every layout is tried"),
    "pp": (int, "N", "pipeline stages"),
    "engine": (str, "NAME", "vllm (default) or sglang"),
    "engine_version": (str, "V", "its release (default: the newest whose rules were read)"),
}


def add_space_arguments(parser: argparse.ArgumentParser) -> None:
    """Everything that says which search space is meant."""
    parser.add_argument("space", nargs="?", metavar="SPACE", help="a search space by name or path")
    add_settings_arguments(parser)
    group = parser.add_argument_group("without a search space file")
    for name, (kind, metavar, text) in _NO_YAML.items():
        group.add_argument("--" + name.replace("_", "-"), type=kind, metavar=metavar, help=text)


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """What is set over a search space."""
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="an engine flag (explain), or a key of the search space such as engine.version; repeatable",
    )  # fmt: skip
    parser.add_argument("--trials", type=int, metavar="N", help="budget of trials, over the space's own")
    parser.add_argument("--seed", type=int, metavar="N", help="random seed, over the space's own")


def add_partition_argument(parser: argparse.ArgumentParser) -> None:
    """Which partition of it is meant."""
    parser.add_argument("--partition", metavar="V", help="layers per stage, such as 11,11,12 (default: the engine's)")


def add_advice_arguments(parser: argparse.ArgumentParser) -> None:
    """How long changes are tried, in `arguments.advice_seconds`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--advice-seconds", type=_seconds, default=2.0, metavar="S",
        help="CPU seconds for trying changes of flags and partition (default: 2); what gains is printed",
    )  # fmt: skip
    group.add_argument(
        "--no-advice", action="store_const", const=0.0, dest="advice_seconds", help="try no changes"
    )  # fmt: skip


def _seconds(text: str) -> float:
    value = float(text) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else 0.0
    if not value:
        raise argparse.ArgumentTypeError(f"found {text!r}; allowed: seconds above 0, such as 10 or 0.5")
    return value


def words_of(arguments: argparse.Namespace) -> list[str]:
    """What names the search space of `arguments`, as it was written; after `space_of`, which tells flags from keys."""
    words = [] if arguments.space is None else [arguments.space]
    for name in _NO_YAML:
        if (value := getattr(arguments, name)) is not None:
            words += ["--" + name.replace("_", "-"), str(value)]
    for text in arguments.set:
        if text.partition("=")[0] not in arguments.flags:
            words += ["--set", text]
    if getattr(arguments, "part", None) is not None:
        words += ["--part", arguments.part]
    return words


def add_ray_address_argument(parser: argparse.ArgumentParser) -> None:
    """Which Ray cluster candidates run on, where Ray is used."""
    parser.add_argument(
        "--ray-address", metavar="HOST:PORT",
        help="a running Ray cluster, or auto: the one of this machine (default: RAY_ADDRESS, or local: one of its own)",
    )  # fmt: skip


def space_of(
    arguments: argparse.Namespace, stored: SearchSpace | None = None, *, for_layouts: bool = False
) -> SearchSpace:
    """The search space that the arguments mean; also puts the flags of `--set` into `arguments.flags`.

    Args:
        arguments: as they were typed.
        stored: of a study to go on with, in place of one that is named.
        for_layouts: the file's own layout need not be legal.

    Raises:
        SpecError: the file, a flag, or two ways of saying the same.
    """
    from partitune.spec.overrides import from_flags, parse_settings, with_settings
    from partitune.spec.search_space import SearchSpace

    arguments.flags, keys = parse_settings(arguments.set)
    given = {name: value for name in _NO_YAML if (value := getattr(arguments, name, None)) is not None}
    if arguments.space is not None and given:
        names = ", ".join("--" + name.replace("_", "-") for name in given)
        raise SpecError(f"{names}: found beside the search space {arguments.space}; allowed: one of them, or --set")
    if stored is not None and (given or arguments.space is not None or arguments.study is not None):
        raise SpecError(
            "--resume: found beside a search space, --study or flags of the form without YAML; allowed: --resume STUDY "
            "and what changes, such as --trials 100 or --set parallel.pp=4"
        )
    named = from_flags(given) if stored is None and arguments.space is None else stored
    read = SearchSpace.load_for_layouts if for_layouts else SearchSpace.load
    spec = read(arguments.space) if named is None else named
    spec = with_settings(spec, keys)
    for flag, key, value in (
        ("--trials", "budget.trials", arguments.trials),
        ("--seed", "random_seed", arguments.seed),
    ):
        if value is not None:
            spec = with_settings(spec, {key: value}, flag)
    return spec


def space_with_flags(arguments: argparse.Namespace, stored: SearchSpace | None = None) -> SearchSpace:
    """The same, with the flags of `--set` as those that every candidate starts from."""
    from partitune.spec.overrides import with_settings

    spec = space_of(arguments, stored)
    return with_settings(spec, {f"engine.flags.{name}": value for name, value in arguments.flags.items()})
