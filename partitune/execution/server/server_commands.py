"""The words and variables that start one engine's server on every node: one small class per engine.

Decision: a launch is explicit. What would otherwise be taken from a node's surroundings (addresses, ports, how ranks
are started) is written on every node, and variables that silently move ranks or layers are removed there. Ranks stand
as the launcher really puts them: contiguous over `--nnodes` in both engines; vLLM's own Ray executor starts with the
node of the server and goes on by Ray's node ids, so that with more than two nodes nobody knows the order before.

Sources: vLLM 0.32.0 `entrypoints/cli/serve.py` (run_headless), `v1/executor/multiproc_executor.py`,
`v1/executor/ray_utils.py` (get_bundles_sorted_by_node), `utils/network_utils.py` (get_ip); SGLang 0.5.23
`srt/entrypoints/engine.py`, `srt/server_args.py`.
"""

from __future__ import annotations

import ipaddress
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

from partitune.candidate import Knob
from partitune.engines.installed_flags import HELP_WORDS
from partitune.engines.vllm import engine_side
from partitune.errors import SpecError
from partitune.spec.runner import Runner

#: Variables of launchers and schedulers that give ranks and addresses to whoever finds them.
_RANKS = ("LOCAL_RANK", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Start:
    """One start, without what every engine is told alike."""

    served_name: str
    hosts: Sequence[str]  # one a process group
    port: int
    rendezvous_port: int
    runner: Runner
    ranks: int  # of the whole deployment


class ServerCommand(Protocol):
    """What one engine wants beyond the model and its flags."""

    @property
    def program(self) -> tuple[str, ...]:
        """The first words of the engine's own `serve_arguments`, which `engine_command` of a runner stands for."""
        ...

    @property
    def help_words(self) -> tuple[str, ...]:
        """Words behind them that make it list its flags."""
        ...

    @property
    def own_flags(self) -> frozenset[str]:
        """Flags that the launcher writes: nobody else may."""
        ...

    @property
    def removed(self) -> tuple[str, ...]:
        """Variables that no node may bring along."""
        ...

    def words(self, start: Start, node: int) -> tuple[str, ...]:
        """Words of the group on `node`, behind the engine's flags."""
        ...

    def environment(self, start: Start, node: int) -> Mapping[str, str]:
        """Variables of the group on `node`."""
        ...


@dataclass(frozen=True, slots=True)
class VllmCommand:
    """`vllm serve`."""

    backend: str | None = None  # distributed_executor_backend as a flag says; None: none does

    program: ClassVar[tuple[str, ...]] = ("vllm",)
    help_words: ClassVar[tuple[str, ...]] = HELP_WORDS["vllm"]
    own_flags: ClassVar[frozenset[str]] = frozenset(
        (
            *("host", "port", "uds", "served_model_name", "nnodes", "node_rank", "master_addr", "master_port"),
            *("headless", "api_key", "config", "ssl_keyfile", "ssl_certfile", "root_path"),
        )
    )
    removed: ClassVar[tuple[str, ...]] = (
        *("SGLANG_PP_LAYER_PARTITION", "VLLM_PP_LAYER_PARTITION", "VLLM_USE_V2_MODEL_RUNNER", "VLLM_API_KEY"),
        *("VLLM_RAY_BUNDLE_INDICES", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_ENABLE_STARTUP_PLAN", *_RANKS),
    )

    def words(self, start: Start, node: int) -> tuple[str, ...]:
        """Only node 0 serves; the others are headless."""
        words = ["--served-model-name", start.served_name]
        if self.backend is None and start.ranks > 1:
            words += ["--distributed-executor-backend", "mp"]  # else a Ray cluster nearby may be taken instead
        if node == 0:
            words += ["--host", start.hosts[0], "--port", str(start.port)]
        if start.runner.layer_report:
            words += ["--worker-extension-cls", "partitune_vllm_worker.LayerReport"]
        if len(start.hosts) > 1:
            words += ["--nnodes", str(len(start.hosts)), "--node-rank", str(node)]
            words += ["--master-addr", start.hosts[0], "--master-port", str(start.rendezvous_port)]
            words += ["--headless"] if node else []
        return tuple(words)

    def environment(self, start: Start, node: int) -> Mapping[str, str]:
        """The engine's own patience covers ours: whose phase took too long is for us to say."""
        limits = start.runner.limits_s
        patience_s = math.ceil(limits.spawn + limits.rendezvous + limits.load + limits.capture + limits.ready)
        variables = {"VLLM_ENGINE_READY_TIMEOUT_S": str(patience_s)}
        if start.runner.layer_report:
            variables["VLLM_SERVER_DEV_MODE"] = "1"
            variables["PYTHONPATH"] = _with_engine_side(start.runner.env.get("PYTHONPATH"))
        if len(start.hosts) > 1 and _is_address(start.hosts[node]):
            variables["VLLM_HOST_IP"] = start.hosts[node]
        return variables


@dataclass(frozen=True, slots=True)
class SglangCommand:
    """`python -m sglang.launch_server`."""

    program: ClassVar[tuple[str, ...]] = ("python", "-m", "sglang.launch_server")
    help_words: ClassVar[tuple[str, ...]] = HELP_WORDS["sglang"][1:]  # the module is what `sglang serve` starts
    own_flags: ClassVar[frozenset[str]] = frozenset(
        (
            *("host", "port", "served_model_name", "nnodes", "node_rank", "dist_init_addr", "enable_metrics"),
            *("api_key", "admin_api_key", "config", "ssl_keyfile", "ssl_certfile"),
        )
    )
    removed: ClassVar[tuple[str, ...]] = ("SGLANG_PP_LAYER_PARTITION", "VLLM_PP_LAYER_PARTITION", *_RANKS)

    def words(self, start: Start, node: int) -> tuple[str, ...]:
        """The same on every node but its rank; the others than node 0 answer a dummy /health."""
        words = ["--served-model-name", start.served_name, "--host", start.hosts[node], "--port", str(start.port)]
        words += ["--enable-metrics"]
        if len(start.hosts) > 1:
            words += ["--nnodes", str(len(start.hosts)), "--node-rank", str(node)]
            words += ["--dist-init-addr", f"{start.hosts[0]}:{start.rendezvous_port}"]
        return tuple(words)

    def environment(self, start: Start, node: int) -> Mapping[str, str]:  # noqa: ARG002 - the protocol's
        """Nothing of its own."""
        return {}


def server_command(engine: str, flags: Mapping[str, Knob]) -> ServerCommand:
    """How that engine is started under these flags.

    Raises:
        SpecError: an engine without a server of ours, or a way to start ranks that is not ours.
    """
    if engine == "sglang":
        return SglangCommand()
    if engine != "vllm":
        raise SpecError(f"engine.name: {engine} cannot be started; allowed: vllm, sglang")
    backend = flags.get("distributed_executor_backend")
    if backend not in (None, "mp", "ray"):
        raise SpecError(f"distributed_executor_backend: found {backend}; allowed: mp or ray")
    return VllmCommand(None if backend is None else str(backend))


def _with_engine_side(path: str | None) -> str:
    """PYTHONPATH: the folder of what runs inside an engine's processes, then the site's or what is set here."""
    found = os.environ.get("PYTHONPATH", "") if path is None else path
    return os.pathsep.join(part for part in (str(Path(engine_side.__file__).parent), found) if part)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
