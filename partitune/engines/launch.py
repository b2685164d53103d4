"""How an engine is started: what the launcher, the export and the load generator have to be told.

Decision: an engine says words and variables; who starts them, on which machines and when to give up is not its
business. So everything here is plain values in and plain values out, and a site's own settings come in as values too.
A launch is explicit: what would otherwise be taken from a node's surroundings (addresses, ports, how ranks are
started) is written on every node, and variables that silently move ranks or layers are removed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Protocol

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment, command_flags, environment_flags
from partitune.engines.flags import Flag, arguments, config_entries, read_config
from partitune.engines.readout import BenchFormat
from partitune.hardware.parallelism import Layout
from partitune.spec.workload import SingleLoad

#: Variables of launchers and schedulers that give ranks and addresses to whoever finds them.
RANK_VARIABLES = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

#: Where a server listens: whoever measures it stands on the same machine.
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Start:
    """One start on all its nodes, without the model and the flags."""

    served_name: str
    hosts: Sequence[str]  # one a process group
    port: int
    rendezvous_port: int
    ranks: int  # of the whole deployment
    flags: Mapping[str, FlagValue]  # of the search space and of the site
    patience_s: float = 0.0  # that the engine may take to start; longer is for the launcher to say
    reports_layers: bool = False  # its workers shall say which layers they hold
    python_path: str = ""  # PYTHONPATH of the site


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Who puts ranks on nodes, and what is known of it before."""

    by_ray: bool = False  # one command is started, and the engine itself has Ray place the ranks
    order_note: str = ""  # why nobody knows before which stage stands on which node; empty: it is known
    refusal: str = ""  # why the launcher has no words for this layout; empty: it has


@dataclass(frozen=True, slots=True)
class LayerReport:
    """How workers are asked which layers they hold, where the engine lets them be asked."""

    path: str  # below the server's address
    question: Mapping[str, str]
    config_path: str  # the configuration as JSON
    written: AbstractSet[str]  # flags and variables that it takes


@dataclass(frozen=True, slots=True)
class Target:
    """The server a load goes to."""

    url: str
    engine: str
    model: str  # whose tokenizer makes the prompts
    served_name: str
    flags: Mapping[str, FlagValue]  # of the engine


@dataclass(frozen=True, slots=True)
class LoadRun:
    """One run of a load."""

    requests: int
    seed: int
    result: str  # file to write
    goodput: Mapping[str, float] = field(default_factory=dict)  # `ttft_ms` and so on: what a good request keeps


@dataclass(frozen=True, slots=True)
class TraceReading:
    """What a load generator makes prompts of when it replays a trace."""

    fields: tuple[str, ...]  # of every line
    argument: str  # flag that has to be given with it
    meaning: str  # of that flag
    others: Mapping[str, str] = field(default_factory=dict)  # fields that ask for another load than it sends -> why


class LoadGenerator(Protocol):
    """A program that sends a search space's load to a server and writes down what it saw.

    Every run gets the lengths, the arrivals and the number of requests of the search space, in the tool's own terms,
    and greedy requests that run to their full length. None warms up by itself: it would repeat measured prompts, and
    the prefix cache would answer for the engine.
    """

    name: str  # as a runner's `benchmark.tool` spells it
    title: str  # what its user types, where that is not its name
    program: tuple[str, ...]  # how it is usually started
    format: BenchFormat  # where its result has what
    trace: TraceReading | None  # what it needs of a trace; None: it replays none
    draws_bursts: bool  # whether arrivals may be other than Poisson
    counts_good_requests: bool  # whether it can be told what a good request keeps
    shares_prefixes: bool = False  # whether random prompts may begin with system prompts
    key_variable: str = "OPENAI_API_KEY"  # by which it takes the key that the server asks for

    def words(self, load: SingleLoad, target: Target, run: LoadRun) -> Iterator[str]:
        """The words after the program's, for a load that it can produce."""


def serving_format(end_to_end: str, **further: tuple[str, ...]) -> BenchFormat:
    """Where the load generators of vLLM and SGLang have what in a result: SGLang's was made of vLLM's.

    Args:
        end_to_end: the tool's word for the latency of a whole request.
        further: keys of counts that only this one has.
    """
    return BenchFormat(
        keys={
            "completed": ("completed",),
            "failed": ("failed",),
            "sent": ("num_prompts",),
            "input_tokens": ("total_input_tokens",),
            "output_tokens": ("total_output_tokens",),
            "duration_s": ("duration",),
            **further,
        },
        latencies={
            **{what: ("{}_" + what + "_ms", 1.0) for what in ("ttft", "tpot", "itl")},
            "e2e": ("{}_" + end_to_end + "_ms", 1.0),
        },
        points={"mean": ("mean",), "p50": ("median", "p50"), "p90": ("p90",), "p99": ("p99",)},
        throughputs={
            "output_throughput_tok_s": ("output_throughput",),
            "request_throughput_req_s": ("request_throughput",),
        },
        rates={"goodput_req_s": ("request_goodput",)},  # null where no limits were given to the tool
    )


def goodput_words(run: LoadRun) -> Iterator[str]:
    """What a good request keeps, as both of them take it; the whole request is `e2el` there."""
    if run.goodput:
        yield "--goodput"
        names = {"ttft_ms": "ttft", "tpot_ms": "tpot", "e2e_ms": "e2el"}
        yield from (f"{names[name]}:{limit:g}" for name, limit in run.goodput.items())


class Launch(Protocol):
    """How one engine's server is started. What has a value or a body here holds where an engine says nothing else."""

    title: str  # the engine's name in a sentence
    partition_env: str  # environment variable that carries the partition
    flags: Mapping[str, Flag]  # of its command line
    model_key: str  # key of the model in the engine's own config file
    program: tuple[str, ...]  # its first words, which `engine_command` of a runner stands for
    model_words: tuple[str, ...]  # between these and the model
    help_words: tuple[str, ...]  # words behind the program that make it list every flag of its server
    own_flags: AbstractSet[str]  # flags that the launcher writes: nobody else may
    placing_flags: AbstractSet[str] = frozenset()  # flags that decide on which nodes what is started: they cannot vary
    removed: tuple[str, ...]  # variables that no node may bring along
    key_variable: str = ""  # by which the server takes the key that it asks for; empty: it asks for none
    scheduling_flags: AbstractSet[str]  # flags under which the same prompt, alone on the server, gives the same text
    drafting_flags: tuple[str, ...] = ()  # flags that ask for speculative decoding
    transfer_flags: Mapping[str, FlagValue] = MappingProxyType({})  # of one side of a KV transfer -> value for neither
    layer_report: LayerReport | None = None  # how its workers can be asked for their layers; None: they cannot
    load_generator: LoadGenerator  # the engine's own

    def parallel_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The sizes of the layout as flags."""

    def rank_placement(self, flags: Mapping[str, FlagValue], layout: Layout, nodes: int) -> RankPlacement:
        """How ranks come to `nodes` nodes. Raises SpecError for a way to start ranks that is not ours."""
        return RankPlacement()

    def serve_arguments(self, model: str, deployment: Deployment) -> tuple[str, ...]:
        """Command-line words that start the server, program first: the parallel sizes and the deployment's flags."""
        words = arguments(self._all_flags(deployment), self.flags)
        return (*self.program, *self.model_words, model, *words)

    def own_variables(self, deployment: Deployment) -> Mapping[str, str]:
        """Variables by which it takes what others take as flags."""
        return {}

    def environment(self, deployment: Deployment) -> Mapping[str, str]:
        """Variables of the server, wherever it is started; no partition where none was chosen: empty is an error."""
        variables = {**environment_flags(deployment.flags), **self.own_variables(deployment)}
        if deployment.partition is not None:
            variables[self.partition_env] = ",".join(map(str, deployment.partition))
        return variables

    def node_words(self, start: Start, node: int) -> tuple[str, ...]:
        """Words of the process group on `node`, behind those of `serve_arguments`."""

    def node_environment(self, start: Start, node: int) -> Mapping[str, str]:
        """Variables of the process group on `node`, beside those of `environment`."""
        return {}

    def config_yaml(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The flags as the engine's own `--config` takes them: long names."""
        return config_entries(self._all_flags(deployment), self.flags)

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """Shell commands that start the server from such a file: one a node, or one in all."""

    def read_config(self, entries: Mapping[str, object]) -> Mapping[str, FlagValue]:
        """The flags the engine takes from such a file, dropping what it drops: for the check after an export."""
        return read_config(entries, self.flags)

    def _all_flags(self, deployment: Deployment) -> dict[str, FlagValue]:
        return {**self.parallel_flags(deployment), **command_flags(deployment.flags)}
