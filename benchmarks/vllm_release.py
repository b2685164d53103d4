"""Record a release of vLLM and say what changed: `make record VLLM=WHEEL`.

    python -m benchmarks.vllm_release --vllm WHEEL [--before WHEEL] [--out FOLDER]

Every WHEEL is a file or the folder it was unpacked to. It is held against `--before`, or against the recordings and
tables of the project where that is left out, and against the simulator. The new recordings go to FOLDER. Exit code 0:
nothing changed and the simulator does the same; 1: see the text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from benchmarks.record_vllm_schedules import write
from benchmarks.vllm_changes import report
from benchmarks.vllm_facts import of_project, of_wheel
from benchmarks.vllm_wheel import version_of


@contextmanager
def unpacked(wheel: Path) -> Iterator[Path]:
    """The folder of a wheel; the Python files of one that is packed are laid out for a while."""
    if wheel.is_dir():
        yield wheel
        return
    with TemporaryDirectory() as folder, ZipFile(wheel) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])
        yield Path(folder)


def main() -> int:
    """Record, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", type=Path, required=True, metavar="WHEEL", help="the release")
    parser.add_argument("--before", type=Path, metavar="WHEEL", help="the one before")
    parser.add_argument("--out", type=Path, default=Path("build/recordings"), help="default: %(default)s")
    options = parser.parse_args()
    for wheel in filter(None, (options.vllm, options.before)):
        if not wheel.exists():
            parser.error(f"{wheel}: no such wheel")
    pool = ProcessPoolExecutor(2, get_context("spawn"), max_tasks_per_child=1)  # one process reads one wheel
    with pool, unpacked(options.vllm) as root:
        version = version_of(root)
        release = pool.submit(of_wheel, root, version)
        if options.before is None:
            before = of_project(version)
        else:
            with unpacked(options.before) as former:
                before = pool.submit(of_wheel, former, version).result()
        after = release.result()
    file: Path = options.out / f"schedules_vllm_{version.replace('.', '_')}.json.gz"
    file.parent.mkdir(parents=True, exist_ok=True)
    write(file, list(after.schedules.values()))
    lines = report(before, after)
    print(*lines, f"recorded: {file}", sep="\n")
    return int(any(line.startswith(" ") for line in lines))


if __name__ == "__main__":
    sys.exit(main())
