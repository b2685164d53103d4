"""Lets every worker of a running vLLM say which layers it holds; vLLM itself logs nothing for a partition it was given.

Decision: this one file is found by the engine's own Python through PYTHONPATH (this folder) and named with
`--worker-extension-cls partitune_vllm_worker.LayerReport`; partitune need not be installed beside the engine. The
answer is read off the loaded model, not off the variable it was built from: layers of other stages are placeholders
there. A server in development mode (`VLLM_SERVER_DEV_MODE=1`) takes the question at `POST /collective_rpc`.

Source: vLLM 0.32.0 `v1/worker/worker_base.py` (init_worker), `entrypoints/serve/dev/rpc/api_router.py`,
`model_executor/models/utils.py` (make_layers, PPMissingLayer).
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

_ELSEWHERE = "PPMissingLayer"  # class of the placeholder


class LayerReport:
    """Becomes a base class of vLLM's worker. No name here may be one of the worker's own."""

    def partitune_layers(self: Any) -> dict[str, object]:
        """What this worker holds.

        Returns:
            pp_rank, tp_rank, first_layer, end_layer (exclusive), layers (of the whole model), weight_bytes, host, pid.
            weight_bytes is None in host memory, where the engine repacks weights and drops the parameters it loaded.
        """
        state = importlib.import_module("vllm.distributed.parallel_state")
        model = self.get_model()
        weights = list(model.parameters())
        stacks = [part.layers for part in model.modules() if hasattr(part, "start_layer") and hasattr(part, "layers")]
        stack = max(stacks, key=len)  # a vision tower or a drafter is shorter
        repacked = any(weight.device.type == "cpu" for weight in weights)
        held = [index for index, layer in enumerate(stack) if type(layer).__name__ != _ELSEWHERE]
        if held != list(range(held[0], held[0] + len(held))):
            raise RuntimeError(f"layers {held} of {len(stack)} are here, which is no single run of layers")
        return {
            "pp_rank": state.get_pp_group().rank_in_group,
            "tp_rank": state.get_tp_group().rank_in_group,
            "first_layer": held[0],
            "end_layer": held[-1] + 1,
            "layers": len(stack),
            "weight_bytes": None if repacked else sum(weight.nbytes for weight in weights),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
