"""Which pool a runner's candidates run in."""

from __future__ import annotations

import socket

import pytest

from partitune.errors import SpecError
from partitune.execution.choice import choose_driver, choose_pool
from partitune.execution.pools.local import LocalPool
from partitune.execution.pools.pool import Pool
from partitune.execution.pools.ray import RayPool
from partitune.execution.pools.warming import WarmingPool
from partitune.planning.resolve import resolve
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from tests.fake_setup import SPACE

COMMAND = ["true", "{result}"]


def chosen(wanted: str, address: str | None, **settings: object) -> Pool:
    space = SearchSpace.from_mapping(SPACE, source="fake.yaml")
    runner = Runner.from_mapping({"name": "r", **settings}, source="r.yaml")
    return choose_pool(choose_driver(resolve(space), space, runner), runner, wanted, address)


@pytest.mark.parametrize(
    ("settings", "wanted", "address", "kind"),
    [
        ({"driver": "simulator"}, "ray", None, WarmingPool),
        ({"driver": "simulator"}, "ray", "local", WarmingPool),
        ({"driver": "simulator"}, "ray", "h:1", RayPool),
        ({"driver": "simulator"}, "local", None, LocalPool),
        ({"driver": "vllm"}, "ray", None, LocalPool),  # the server has the whole machine
        ({"driver": "vllm", "nodes": {"start": "ray"}}, "ray", "h:1", RayPool),
        ({"driver": "command", "command": COMMAND}, "ray", None, LocalPool),
        ({"driver": "command", "command": COMMAND, "workers": 3}, "ray", None, RayPool),
    ],
)
def test_it_follows_from_the_runner(
    settings: dict[str, object], wanted: str, address: str | None, kind: type[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as cluster:  # it has to answer
        there = f"127.0.0.1:{cluster.getsockname()[1]}"
        assert type(chosen(wanted, there if address == "h:1" else address, **settings)) is kind
        monkeypatch.setenv("RAY_ADDRESS", there)  # counts where Ray is used anyhow
        in_spite = RayPool if kind is WarmingPool and address is None else kind
        assert type(chosen(wanted, there if address == "h:1" else address, **settings)) is in_spite


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(SpecError, match="--pool: found local, and runner r starts nodes of Ray"):
        chosen("local", None, driver="vllm", nodes={"start": "ray"})
    with pytest.raises(
        SpecError, match="--ray-address: found beside runner r, which starts the engine on this machine"
    ):
        chosen("ray", "h:1", driver="vllm")
