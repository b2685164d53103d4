"""Settings of the simulated SGLang scheduler from a deployment; sizes as SGLang 0.5.23 derives them at start-up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from partitune.costs.cost_model import Batch
from partitune.engines.deployment import Deployment
from partitune.engines.memory import KvCache
from partitune.engines.recordings import LinearCosts
from partitune.engines.scheduling import Simulation
from partitune.engines.sglang.engine import Sglang
from partitune.engines.sglang.scheduler.engine_core import simulate_sglang
from partitune.engines.sglang.scheduler.settings import SglangSettings, sglang_settings
from partitune.errors import Refused, SpecError
from partitune.hardware.parallelism import Layout
from partitune.models.reader import load_architecture
from partitune.simulation.request import Request
from partitune.simulation.run import Overheads
from tests.small_models import H200, architecture

GIB = 1 << 30
DENSE = Deployment("0.5.23", architecture("f" * 16, max_position=32768), layout=Layout(pp=4), gpu=H200)
FLAT = LinearCosts((1.0,) * 4, 1.0, 0.0)


def cache(deployment: Deployment, gib: float = 8) -> KvCache:
    return Sglang().kv_cache(deployment, (4, 4, 4, 4), [int(gib * GIB)] * 4)


def settings(**flags: bool | int | float | str) -> SglangSettings:
    deployment = replace(DENSE, flags=flags)
    return sglang_settings(deployment, cache(deployment), FLAT)


def test_defaults_of_an_h200() -> None:
    found = settings()
    assert found == SglangSettings(
        stages=4,
        max_running_requests=4096,  # 524288 / 32768 * 512 = 8192, clamped (kv_cache_configurator.py)
        num_tokens=8 * GIB // (4 * 4096),
        chunked_prefill_size=8192,
        max_model_len=32768,
    )
    assert found.micro_batch_cap == 1024


def test_rows_follow_the_pool() -> None:
    assert settings(max_total_tokens=3000).max_running_requests == 1500  # tokens // 2
    assert settings(context_length=131072).max_running_requests == 2048  # 524288 / 131072 * 512
    assert settings(max_running_requests=37).max_running_requests == 37


def test_flags_and_environment_arrive() -> None:
    found = settings(
        chunked_prefill_size=-1,
        page_size=64,
        pp_async_batch_depth=1,
        pp_max_micro_batch_size=6,
        enable_mixed_chunk=True,
        prefill_max_requests=3,
        prefill_decode_interval=2,
        schedule_conservativeness=0.3,
        disable_radix_cache=True,
        SGLANG_PP_COMM_OVERLAP="true",
        SGLANG_PP_SKIP_PURE_CHUNKED_OUTPUT_COMM=True,
    )
    assert found.chunked_prefill_size is None
    assert not found.mixes  # nothing to mix into without chunks (init_chunked_prefill)
    assert (found.page_size, found.slots, found.micro_batch_cap) == (64, 5, 6)
    assert (found.prefill_max_requests, found.prefill_decode_interval) == (3, 2)
    assert (found.schedule_conservativeness, found.radix_cache) == (0.3, False)
    assert (found.comm_overlap, found.skip_pure_chunked_output) == (True, True)


def test_dynamic_chunks_are_fitted_to_stage_0() -> None:
    class Attention(LinearCosts):
        def compute_s(self, batch: Batch) -> list[float]:
            tokens = batch.prefill_tokens
            return [1e-8 * tokens**2 + 1e-5 * tokens, 9.0, 9.0, 9.0]

    deployment = replace(DENSE, flags={"enable_dynamic_chunking": True, "SGLANG_DYNAMIC_CHUNKING_SMOOTH_FACTOR": 0.6})
    law = sglang_settings(deployment, cache(deployment), Attention((1.0,) * 4, 0.0, 0.0)).dynamic_chunks
    assert law is not None
    assert (law.a, law.b) == pytest.approx((1e-8, 1e-5), rel=1e-4)
    assert law.smooth == 0.6
    assert settings(enable_dynamic_chunking=True).dynamic_chunks is None  # flat times: the engine's fit fails


def test_other_policies_are_refused_by_name() -> None:
    with pytest.raises(SpecError, match="schedule_policy lof is not simulated; fcfs, lpm and dfs-weight are"):
        settings(schedule_policy="lof")


def test_the_settings_run() -> None:
    requests = [Request(str(number), 0.0, 3000, 4) for number in range(12)]
    run = simulate_sglang(requests, settings(pp_max_micro_batch_size=3), FLAT, Overheads())
    assert run.batch_tokens == 12 * (3000 + 3)


@pytest.mark.parametrize(("model", "refused"), [("kimi-linear-48b", True), ("qwen3-8b", False)])
def test_prompts_that_begin_alike_need_a_model_that_keeps_every_token(model: str, refused: bool) -> None:
    """mem_cache/unified_cache/components/mamba.py: a match ends where a node has a state."""
    read = load_architecture(model)
    deployment = Deployment("0.5.23", read, Layout(pp=2), H200)
    partition = (len(read.layers) // 2, -(-len(read.layers) // 2))
    pool = Sglang().kv_cache(deployment, partition, [40 * GIB] * 2)
    talk = [Request("0", 0.0, 20, 5), Request("1", 9.0, 30, 5, continues="0")]
    simulation = Simulation(talk, deployment, pool, LinearCosts((1.0, 1.0), 0.01, 0.0))
    if refused:
        with pytest.raises(Refused, match="SGLang: prompts that begin alike are not simulated for a model with linear"):
            Sglang().run(simulation)
    else:
        assert Sglang().run(simulation).prefix_cache_hits == 24
