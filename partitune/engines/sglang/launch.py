"""The words and variables that start SGLang on every node, and its config file.

Decision: it takes a key in its words or a config file alone, and prints what it took from both; so it has none, and its
loopback is what keeps others out.

Sources: SGLang 0.5.23 `srt/entrypoints/engine.py` (ranks contiguous over `--nnodes`), `srt/server_args.py`.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Mapping
from types import MappingProxyType

from partitune.candidate import FlagValue
from partitune.engines.deployment import Deployment
from partitune.engines.launch import LOOPBACK, RANK_VARIABLES, Launch, Start
from partitune.engines.sglang.benchmark import SglangBench
from partitune.engines.sglang.flags import SGLANG_FLAGS
from partitune.engines.sglang.parallel_rules import layout_flags


class SglangLaunch(Launch):
    """How `python -m sglang.launch_server` is started."""

    title = "SGLang"
    partition_env = "SGLANG_PP_LAYER_PARTITION"
    flags = SGLANG_FLAGS
    model_key = "model-path"
    program = ("python", "-m", "sglang.launch_server")
    model_words = ("--model-path",)
    help_words = ("--help",)
    own_flags = frozenset(
        (
            *("host", "port", "served_model_name", "nnodes", "node_rank", "dist_init_addr", "enable_metrics"),
            *("api_key", "admin_api_key", "config", "ssl_keyfile", "ssl_certfile"),
        )
    )
    removed = (partition_env, "VLLM_PP_LAYER_PARTITION", *RANK_VARIABLES)
    scheduling_flags = frozenset(
        (
            *("pp_max_micro_batch_size", "chunked_prefill_size", "max_prefill_tokens", "max_running_requests"),
            *("mem_fraction_static", "schedule_policy", "schedule_conservativeness"),
            *("max_total_tokens", "pp_async_batch_depth"),
        )
    )
    drafting_flags = ("speculative_algorithm",)  # 0.5.23 `arg_groups/speculative_hook.py`
    transfer_flags = MappingProxyType({"disaggregation_mode": "null"})
    load_generator = SglangBench()

    def parallel_flags(self, deployment: Deployment) -> Mapping[str, FlagValue]:
        """The sizes of the layout, as `layout_flags` of `parallel_rules` spells them."""
        return layout_flags(deployment.layout, deployment.architecture)

    def node_words(self, start: Start, node: int) -> tuple[str, ...]:
        """The same on every node but its rank; the others than node 0 answer a dummy /health.

        All of 127/8 is the loopback, and two nodes may stand on one machine.
        """
        host = str(ipaddress.IPv4Address(LOOPBACK) + node)
        words = ["--served-model-name", start.served_name, "--host", host, "--port", str(start.port)]
        words += ["--enable-metrics"]
        if len(start.hosts) > 1:
            words += ["--nnodes", str(len(start.hosts)), "--node-rank", str(node)]
            words += ["--dist-init-addr", f"{start.hosts[0]}:{start.rendezvous_port}"]
        return tuple(words)

    def config_commands(self, config: str, deployment: Deployment, nodes: int) -> tuple[str, ...]:  # noqa: ARG002
        """The same command on every node, told its rank (`entrypoints/engine.py`)."""
        start = f"python -m sglang.launch_server --config {shlex.quote(config)}"
        if nodes == 1:
            return (start,)
        group = f"{start} --nnodes {nodes} --dist-init-addr ADDRESS_OF_NODE_0:20000 --node-rank"
        return tuple(f"{group} {rank}" for rank in range(nodes))
