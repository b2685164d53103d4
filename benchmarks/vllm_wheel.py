"""An unpacked vLLM wheel whose scheduler and KV planning run without what vLLM depends on.

Decision: only what decides a schedule or a KV plan is real (`_REAL`); torch, msgspec and the rest of vLLM are inert
(inert_modules.py), so that any release runs in the project's own environment. The settings a release adds are not known
here: a configuration takes what is declared in the wheel's own `config/*.py` unless it is told otherwise.

Source: vLLM 0.30.0 to 0.33.0, `v1/core/` and what it imports.
"""

from __future__ import annotations

import ast
import hashlib
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.inert_modules import WheelFinder, inert

_REAL = (
    "vllm.envs",
    "vllm.utils",
    "vllm.utils.hashing",
    "vllm.utils.import_utils",
    "vllm.utils.math_utils",
    "vllm.utils.mem_constants",
    "vllm.utils.mem_utils",
    "vllm.v1.core",
    "vllm.v1.core.",
    "vllm.v1.engine",
    "vllm.v1.hisparse.layout",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.kv_cache_layout",
    "vllm.v1.kv_cache_spec_registry",
    "vllm.v1.metrics.cache_hit_source",
    "vllm.v1.metrics.stats",
    "vllm.v1.outputs",
    "vllm.v1.request",
    "vllm.v1.structured_output.request",
    "vllm.v1.utils",
)
_INERT = ("cbor2", "msgspec", "psutil", "regex", "torch", "transformers", "triton", "uvloop", "xxhash", "zmq")


def _element_bytes(dtype: object) -> int:
    """A dtype is said in bytes."""
    if not isinstance(dtype, int):
        raise TypeError(f"a dtype is the bytes of an element here, not {dtype!r}")
    return dtype


def _platform() -> Any:
    """As CUDA in what planning asks (since 0.33.0); nothing otherwise."""
    platform = inert("current_platform")
    platform.get_kv_cache_config_builder_cls = lambda _: "vllm.v1.core.kv_cache_planning.DefaultKVCacheConfigBuilder"
    return platform


def digest(value: object) -> bytes:
    """What blocks are hashed with; as `vllm.utils.hashing.sha256`."""
    return hashlib.sha256(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)).digest()


def version_of(root: Path) -> str:
    """The release of the wheel at `root`: what it says itself, or else the name of its folder."""
    if not (root / "vllm" / "v1" / "core" / "sched" / "scheduler.py").is_file():
        raise SystemExit(f"{root}: holds no vllm/v1/core/sched/scheduler.py; give the folder of an unpacked wheel")
    named = root / "vllm" / "_version.py"
    for statement in ast.parse(named.read_text()).body if named.is_file() else ():
        if isinstance(statement, ast.Assign) and "__version__" in ast.unparse(statement.targets[0]):
            return str(ast.literal_eval(statement.value)).split("+")[0]
    return root.name.rpartition("-")[2]


class Wheel:
    """A folder that holds the package `vllm`. From then on `import vllm...` means this one."""

    def __init__(self, root: Path) -> None:
        self._package, self.version = root / "vllm", version_of(root)
        given = {
            "vllm.utils.torch_utils": {"get_dtype_size": _element_bytes},
            "vllm.platforms": {"current_platform": _platform()},
        }
        WheelFinder(root, "vllm", _REAL, _INERT, given).install()
        from vllm.v1.core import kv_cache_utils  # type: ignore[import-not-found]

        kv_cache_utils.init_none_hash(digest)

    def configuration(self, module: str, class_name: str, **values: Any) -> SimpleNamespace:
        """An object with the class's declared defaults, as far as they are literals, and `values`."""
        return SimpleNamespace(**self.declared(module, class_name) | values)

    def declared(self, module: str, class_name: str) -> dict[str, Any]:
        """Defaults of the fields of a class in `module` (a path in the package), as far as they are literals."""
        tree = ast.parse((self._package / module).read_text())
        classes = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == class_name)
        found = {}
        for statement in (inner for node in classes for inner in node.body if isinstance(inner, ast.AnnAssign)):
            value = statement.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "Field":
                value = next((word.value for word in value.keywords if word.arg == "default"), None)
            if isinstance(statement.target, ast.Name) and isinstance(value, ast.Constant):
                found[statement.target.id] = value.value
        return found
