"""How much memory of the GPUs is in use, so that a stopped engine can be proved to have given its own back.

Decision: asked of `nvidia-smi`, because that sees what the driver still holds for a process that is already gone (which
no list of processes shows), and because partitune loads no CUDA. Where there is no such program nothing is claimed. A
GPU on which another process computes proves nothing either way and is left out.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

#: MiB that a GPU may show above what it had before: contexts of monitors come and go.
SLACK_MIB = 1024
_ANSWER_S = 60.0  # a node with eight busy GPUs takes seconds


def used_mib(env: Mapping[str, str]) -> dict[str, int]:
    """MiB in use by GPU UUID, of the GPUs that a process with this environment may use; empty without `nvidia-smi`."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    chosen = None if visible is None else {name.strip() for name in visible.split(",")}
    return {
        uuid: int(used)
        for uuid, index, used in _ask("--query-gpu=uuid,index,memory.used")
        if (chosen is None or {uuid, index} & chosen) and used.isdigit()
    }


def held_mib(before: Mapping[str, int]) -> dict[str, int]:
    """GPUs that have more in use than `before` although no process computes there: MiB above it."""
    if not before:
        return {}
    busy = {uuid for uuid, name in _ask("--query-compute-apps=gpu_uuid,process_name") if name != "[Not Found]"}
    now = used_mib({})
    over = {uuid: now[uuid] - used for uuid, used in before.items() if uuid in now and uuid not in busy}
    return {uuid: mib for uuid, mib in over.items() if mib > SLACK_MIB}


def _ask(query: str) -> list[list[str]]:
    """Rows of one query; none when there is no such program or it fails, as it does where no driver is loaded."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    try:
        table = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=True).stdout
    except subprocess.SubprocessError:
        return []
    return [[cell.strip() for cell in line.split(",", query.count(","))] for line in table.splitlines() if line]
