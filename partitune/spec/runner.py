"""How candidates are measured at a site: the driver, how the engine is started there, and when to give up.

Decision: a runner is apart from the search space, because the same space is first simulated and then measured, and
what changes between the two is only this file. Nothing here changes what a candidate means: the model, its flags and
the load stand in the search space, what holds for the site alone (addresses, network variables, paths) stands here.
Keys that the chosen driver would ignore are refused. A secret never stands in the file: `forward_env` names variables
whose values are taken from the environment of whoever starts partitune. A command is never a shell line: each word of
the file, some with names in braces, is one word of the program, whatever stands in the values put into it, so that no
partition, path or flag can end a quote or start another command.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field

from partitune.errors import did_you_mean
from partitune.spec.catalog import Kind
from partitune.spec.domains import EnvValues, FlagValues
from partitune.spec.yaml.faults import Fault, describe, text_fault
from partitune.spec.yaml.strict_model import SpecFile, StrictModel, allowed, number, whole, wrong

#: Drivers that start no server of ours; the others are engines by name, and a site's own classes, `FILE.py:Class`.
_SIMULATOR, _COMMAND = "simulator", "command"
_DRIVERS = f"{_SIMULATOR}, the name of an engine such as vllm, {_COMMAND}, or FILE.py:Class"
#: What the words of `command` may hold in braces.
PLACEHOLDERS = (
    *("partition", "env_file", "config", "load_file", "result"),
    *("model", "served_name", "trial", "port", "seed", "nodes", "gpus_per_node", "engine_version", "folder"),
)

#: How a word of `command` names a file beside the runner.
_HERE = "{folder}/"
_SITE_DRIVER = re.compile(r"(?P<file>[^:\0]+\.py):(?P<name>[A-Za-z_][A-Za-z0-9_]{0,99})", re.ASCII)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_HOST = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]{0,99}$"
_FIELD = re.compile(r"\{\{|\}\}|\{([a-z_]*)\}|[{}]")


def _word(value: object) -> object:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str) or not value:
        raise wrong(f"found {describe(value)}; allowed: a word, in quotes")
    if fault := text_fault(value):
        raise wrong(fault)
    return value


Words = Annotated[
    tuple[Annotated[str, BeforeValidator(_word), Field(max_length=4096)], ...], Field(strict=False, max_length=1000)
]


def fields_of_text(text: str) -> tuple[str, ...]:
    """The names in braces; a brace that stands alone counts as the name of nothing: ''."""
    return tuple(match[1] or "" for match in _FIELD.finditer(text) if match[0] not in ("{{", "}}"))


def filled(words: tuple[str, ...], values: Mapping[str, str]) -> tuple[str, ...]:
    """The words with each `{name}` replaced by its value and `{{` by a brace."""
    return tuple(word.format_map(values) for word in words)


def _driver(value: str) -> str:
    if _NAME.fullmatch(value) or _SITE_DRIVER.fullmatch(value):
        return value
    raise wrong(f"found {describe(value)}; allowed: {_DRIVERS}")


class Nodes(StrictModel):
    """Where the engine's processes are started."""

    start: Annotated[
        Literal["local", "ray"], allowed("local (on this machine) or ray (on the nodes of a Ray cluster)")
    ] = "local"
    hosts: Annotated[
        tuple[Annotated[str, Field(pattern=_HOST)], ...],
        allowed(
            "a list of addresses, one a node in the order of the stages; with ray those of the nodes to use, else how "
            "the process groups on this machine reach each other"
        ),
        Field(strict=False, max_length=4096),
    ] = ()


class Limits(StrictModel):
    """Seconds of each phase of one start; a phase that takes longer ends the candidate, with the phase's name."""

    spawn: Annotated[float, number(0, 86_400, "seconds until every process runs", above=True)] = 120.0
    rendezvous: Annotated[float, number(0, 86_400, "seconds until all ranks found each other", above=True)] = 600.0
    load: Annotated[float, number(0, 86_400, "seconds to load the weights", above=True)] = 3600.0
    capture: Annotated[float, number(0, 86_400, "seconds to compile and capture graphs", above=True)] = 1800.0
    ready: Annotated[float, number(0, 86_400, "seconds until the server answers", above=True)] = 300.0
    probe: Annotated[float, number(0, 86_400, "seconds for the first request", above=True)] = 120.0
    window: Annotated[float, number(0, 604_800, "seconds of one run of the load generator", above=True)] = 3600.0
    stall: Annotated[float, number(0, 86_400, "seconds without a token while requests run", above=True)] = 120.0
    stop: Annotated[float, number(0, 3600, "seconds to end by itself before it is killed", above=True)] = 60.0


class Benchmark(StrictModel):
    """The load generator: which one, and how often."""

    tool: Annotated[
        str, allowed("the name of an engine, for its own, such as vllm; or guidellm", pattern=_NAME.pattern)
    ] = "vllm"
    command: Annotated[
        Words, allowed("a list of words that start the tool here; as the tool is usually started if left out")
    ] = ()
    warmup_requests: Annotated[int, whole(0, 100_000, "requests sent before anything is measured")] = 8
    windows: Annotated[int, whole(1, 100, "measured runs of the whole load on one server")] = 1
    seed: Annotated[int, whole(0, 2**31 - 1, "of the first window; each further one adds 1")] = 1
    arguments: Annotated[FlagValues, allowed("a mapping of the tool's further flags in snake_case to values")] = Field(
        default_factory=dict
    )


def _command(words: tuple[str, ...]) -> tuple[str, ...]:
    for word in words:
        for name in fields_of_text(word):
            if name not in PLACEHOLDERS:
                hint, fields = did_you_mean(name, PLACEHOLDERS), ", ".join(f"{{{field}}}" for field in PLACEHOLDERS)
                raise wrong(f"found {{{name}}}{hint}; allowed: {fields}, and {{{{ or }}}} for a brace")
    return words


class Runner(SpecFile):
    """The driver that measures, how many at once, how the engine starts here, and when to give up."""

    file_kind: ClassVar[Kind] = Kind.RUNNER

    kind: Annotated[Literal["runner"], allowed("runner")]
    driver: Annotated[
        str, AfterValidator(_driver), allowed(f"{_DRIVERS}, a class of your own beside this file", max_length=4096)
    ]
    workers: Annotated[
        Annotated[int, Field(ge=1, le=1024)] | Literal["auto"],
        allowed("a whole number from 1 to 1024, or auto (as many candidates at once as there is room for)"),
    ] = "auto"
    timeout_s: Annotated[float, number(0, 604_800, "seconds for one candidate", above=True)] = 14_400.0
    engine_command: Annotated[
        Words, allowed("a list of words that start the engine here, such as [/opt/venv/bin/vllm]; as usual if left out")
    ] = ()
    command: Annotated[
        Words,
        AfterValidator(_command),
        allowed(f"a list of words, never a shell line; in braces: {', '.join(PLACEHOLDERS)}"),
    ] = ()
    max_nodes: Annotated[int, whole(1, 4096, "nodes of a candidate that the command can serve on")] = 4096
    nodes: Annotated[Nodes, allowed("a mapping with start, hosts")] = Nodes()
    env: Annotated[
        EnvValues, allowed("a mapping of environment variables of this site to texts, such as {NCCL_IB_HCA: mlx5}")
    ] = Field(default_factory=dict)
    forward_env: Annotated[
        tuple[Annotated[str, Field(pattern=_VARIABLE)], ...],
        allowed("a list of names whose values every node gets from the environment of partitune, such as [HF_TOKEN]"),
        Field(strict=False, max_length=1000),
    ] = ()
    arguments: Annotated[FlagValues, allowed("a mapping of engine flags of this site in snake_case to values")] = Field(
        default_factory=dict
    )
    port: Annotated[
        Annotated[int, Field(ge=1, le=65535)] | Literal["auto"], allowed("a port from 1 to 65535, or auto (a free one)")
    ] = "auto"
    limits_s: Annotated[Limits, allowed(f"a mapping with {', '.join(Limits.model_fields)}")] = Limits()
    benchmark: Annotated[Benchmark, allowed(f"a mapping with {', '.join(Benchmark.model_fields)}")] = Benchmark()
    reference_text: Annotated[
        bool, allowed("true or false (hold the text of one greedy request against that of the default partition)")
    ] = True
    layer_report: Annotated[
        bool, allowed("true or false (ask every worker which layers it holds; vLLM only, not through a container)")
    ] = True
    fresh_servers: Annotated[int, whole(1, 20, "starts of the server a candidate; the load is run on each")] = 1

    @property
    def site_driver(self) -> tuple[Path, str] | None:
        """File and class of a site's own driver; None for a driver of ours."""
        match = _SITE_DRIVER.fullmatch(self.driver)
        return match and (self.absolute(match["file"]), match["name"])

    def named_files(self) -> dict[str, Path]:
        """The files of this site that lie in the runner's folder or below, by their path from there.

        Raises:
            SpecError: one is a link that leads out of it; what it leads to was not meant to leave this machine.
        """
        folder = self.absolute(".")
        named = [] if self.site_driver is None else [self.site_driver[0]]
        named += [self.absolute(word.removeprefix(_HERE)) for word in self.command if word.startswith(_HERE)]
        files = [file for path in named for file in ([path] if path.is_file() else sorted(path.rglob("*")))]
        inside = [file for file in files if file.is_file() and file.is_relative_to(folder)]
        for file in inside:
            if not file.resolve().is_relative_to(folder.resolve()):
                text = f"found {file}, a link to {file.resolve()}; allowed: files that lie in {folder} themselves"
                raise self.error("command" if self.command else "driver", text=text)
        return {file.relative_to(folder).as_posix(): file for file in inside}

    @property
    def starts_server(self) -> bool:
        """True where partitune itself starts the engine."""
        return self._kind == "an engine"

    @property
    def _kind(self) -> str:
        """The kind of driver under which `_UNUSED` lists the keys that this runner would ignore."""
        if self.site_driver is not None:
            return "site"
        return self.driver if self.driver in (_SIMULATOR, _COMMAND) else "an engine"

    def repeated(self, repeat: int) -> Self:
        """The runner for run `repeat` of a candidate: its windows have seeds that no earlier run had."""
        benchmark = self.benchmark
        seed = benchmark.seed + repeat * benchmark.windows
        return self.model_copy(update={"benchmark": benchmark.model_copy(update={"seed": seed})})

    def program(self, words: tuple[str, ...]) -> tuple[str, ...]:
        """A command of this file: a first word with a slash is a path that starts from the file's folder."""
        if words and ("/" in words[0] or words[0].startswith("~")):
            return (str(self.absolute(words[0])), *words[1:])
        return words

    def faults(self) -> Iterator[Fault]:
        """What the driver would ignore, and what it needs."""
        unused = _UNUSED[self._kind]
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].get_default(call_default_factory=True):
                use = ", ".join(kind for kind, ignored in _UNUSED.items() if name not in ignored)
                yield Fault((name,), f"found beside driver {self.driver}, which does not use it; allowed with: {use}")
        if self.driver == _COMMAND and not self.command:
            text = "missing; allowed: the words that measure one candidate, with {result} among them"
            yield Fault(("command",), text)
        elif self.driver == _COMMAND and not any("result" in fields_of_text(word) for word in self.command):
            text = "found no {result}; allowed: words with {result}, the file the result is read from"
            yield Fault(("command",), text)
        for name in self.forward_env:
            if name in self.env:
                yield Fault(("forward_env",), f"found {name}, which env sets as well; allowed: one of the two")


_SERVER_KEYS = ("engine_command", "nodes", "arguments", "reference_text", "layer_report", "fresh_servers")
#: Kind of driver -> the keys it has no use for. A site's own class gets the runner and may use any of them.
_UNUSED: dict[str, tuple[str, ...]] = {
    _SIMULATOR: (*_SERVER_KEYS, "limits_s", "command", "max_nodes", "env", "forward_env", "port", "benchmark"),
    "an engine": ("command", "max_nodes"),
    _COMMAND: _SERVER_KEYS,
    "site": (),
}
