"""The words and variables that start vLLM on every node, and its config file.

Decision: ranks stand as the launcher really puts them: contiguous over `--nnodes`. vLLM's own Ray executor starts with
the node of the server and goes on by Ray's node ids, so that with more than two nodes nobody knows the order before.
Workers answer what they hold in development mode alone, in which a server runs whatever method it is asked to: earlier
releases keep only /v1 behind the key, so the loopback is what keeps others out.

Sources: vLLM 0.32.0 `entrypoints/cli/serve.py` (run_headless), `v1/executor/multiproc_executor.py`,
`v1/executor/ray_utils.py` (get_bundles_sorted_by_node), `utils/network_utils.py` (get_ip), `config/parallel.py`.
"""

from __future__ import annotations

import ipaddress
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.launch import LOOPBACK, RANK_VARIABLES, Launch, LayerReport, RankPlacement, Start
from partitune.engines.vllm import engine_side
from partitune.engines.vllm.benchmark import VllmBench
from partitune.engines.vllm.flags import VLLM_FLAGS
from partitune.engines.vllm.parallel_rules import layout_flags
from partitune.errors import SpecError
from partitune.hardware.parallelism import Layout

_BACKEND = "distributed_executor_backend"
_ORDER_IS_OPEN = (
    "vLLM's Ray executor puts the node of the server first and the others in the order of Ray's node ids: "
    "which stage stands where is read from the log afterwards"
)


class VllmLaunch(Launch):
    """How `vllm serve` is started on every node."""

    title = "vLLM"
    partition_env = "VLLM_PP_LAYER_PARTITION"
    flags = VLLM_FLAGS
    model_key = "model"
    program = ("vllm",)
    model_words = ("serve",)
    help_words = ("serve", "--help=all")
    own_flags = frozenset({
        "host", "port", "uds", "served_model_name", "nnodes", "node_rank", "master_addr", "master_port", "headless",
        "api_key", "config", "ssl_keyfile", "ssl_certfile", "root_path",
    })  # fmt: skip
    placing_flags = frozenset({_BACKEND})
    removed = (
        "SGLANG_PP_LAYER_PARTITION", partition_env, "VLLM_USE_V2_MODEL_RUNNER", "VLLM_API_KEY",
        "VLLM_RAY_BUNDLE_INDICES", "VLLM_HOST_IP", "VLLM_PORT", "VLLM_ENABLE_STARTUP_PLAN", *RANK_VARIABLES,
    )  # fmt: skip
    key_variable = "VLLM_API_KEY"
    scheduling_flags = frozenset({
        "max_num_batched_tokens", "max_num_seqs", "async_scheduling", "enable_chunked_prefill",
        "gpu_memory_utilization", "enable_prefix_caching", "scheduling_policy", "num_gpu_blocks_override",
        "kv_cache_memory_bytes",
    })  # fmt: skip
    drafting_flags = ("speculative_config", "spec_method", "spec_model", "spec_tokens")  # 0.32 `engine/arg_utils.py`
    transfer_flags = MappingProxyType({"kv_transfer_config": ""})
    layer_report = LayerReport(
        "/collective_rpc",
        {"method": "partitune_layers"},
        "/server_info?config_format=json",
        frozenset({"worker_extension_cls", "PYTHONPATH"}),
    )
    load_generator = VllmBench()

    def parallel_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The sizes of the layout as flags of `vllm serve`, and the back ends that were chosen."""
        return layout_flags(deployment.layout)

    def own_variables(self, deployment: Deployment) -> Mapping[str, str]:
        """The variable that picks a model runner; none where the release shall choose."""
        return {} if deployment.runner == "auto" else {"VLLM_USE_V2_MODEL_RUNNER": str(int(deployment.runner == "v2"))}

    def rank_placement(self, flags: Mapping[str, FlagValue], layout: Layout, nodes: int) -> RankPlacement:
        """Who puts ranks on nodes, by the executor backend. Raises SpecError for one that is not `mp` or `ray`.

        `--nnodes` alone spans every replica over all nodes (nnodes_within_dp); the placement has each replica on as few
        as it needs.
        """
        backend = flags.get(_BACKEND)
        if backend not in (None, "mp", "ray"):
            raise SpecError(f"{_BACKEND}: found {backend}; allowed: mp or ray")
        by_ray, refusal = backend == "ray", ""
        if layout.dp > 1 and nodes > 1:
            refusal = (
                f"data ranks of vLLM over {nodes} nodes are not started by partitune; a runner of kind command can"
            )
        return RankPlacement(by_ray, _ORDER_IS_OPEN if by_ray and nodes > 2 else "", refusal)

    def node_words(self, start: Start, node: int) -> tuple[str, ...]:
        """Words of one node: only node 0 serves, the others are headless and meet at its address."""
        words = ["--served-model-name", start.served_name]
        if start.flags.get(_BACKEND) is None and start.ranks > 1:
            words += ["--distributed-executor-backend", "mp"]  # else a Ray cluster nearby may be taken instead
        if node == 0:
            words += ["--host", LOOPBACK, "--port", str(start.port)]
        if start.reports_layers:
            words += ["--worker-extension-cls", "partitune_vllm_worker.LayerReport"]
        if len(start.hosts) > 1:
            words += ["--nnodes", str(len(start.hosts)), "--node-rank", str(node)]
            words += ["--master-addr", start.hosts[0], "--master-port", str(start.rendezvous_port)]
            words += ["--headless"] if node else []
        return tuple(words)

    def node_environment(self, start: Start, node: int) -> Mapping[str, str]:
        """Variables of one node. The engine's own patience covers ours: whose phase took too long the launcher says."""
        variables = {"VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(start.patience_s))}
        if start.reports_layers:
            variables["VLLM_SERVER_DEV_MODE"] = "1"
            ours = str(Path(engine_side.__file__).parent)
            variables["PYTHONPATH"] = os.pathsep.join(filter(None, (ours, start.python_path)))
        if len(start.hosts) > 1 and _is_address(start.hosts[node]):
            variables["VLLM_HOST_IP"] = start.hosts[node]
        return variables

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:
        """One command a node, the others than the first without a server; Ray places its workers from one command.

        vLLM 0.32 `docs/serving/parallelism_scaling.md`, `entrypoints/cli/serve.py`.
        """
        start = f"vllm serve --config {shlex.quote(config)}"
        if nodes == 1 or deployment.flags.get(_BACKEND) == "ray":
            return (start,)
        group = f"{start} --nnodes {nodes} --master-addr ADDRESS_OF_NODE_0 --node-rank"
        return (f"{group} 0", *(f"{group} {rank} --headless" for rank in range(1, nodes)))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
