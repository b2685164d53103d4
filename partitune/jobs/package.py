"""What travels to the cluster: this partitune and the few files a study names, nothing that happens to lie around.

Decision: both are built here, file by file, because Ray's own packing takes a folder: it ships `.git` and model weights
along, and silently drops what a `.gitignore`, a `.rayignore` or its own list of excludes (`venv`, `.venv`, ...) names.
The study's files become one zip, which Ray uploads as it is. partitune travels as a package folder and not as a wheel:
for a wheel every node runs `pip install` (ray 2.60, `_private/runtime_env/packaging.py`, install_wheel_package), so
nodes without pip fail and any declared dependency, Ray included, is downloaded beside the one that runs.

A shipped file keeps its path at home (`catalog.readable_path`), so the study in the database is the one a search at
home would have stored: it can be shown, exported and resumed from either side.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from partitune.errors import SpecError
from partitune.spec.catalog import Kind, readable_path, shipped
from partitune.spec.runner import Runner
from partitune.spec.search_space import SearchSpace
from partitune.version import __version__

#: Folder inside the job's that mirrors the paths of the shipped files.
FILES = "files"
#: What Ray's job server takes in one request (ray 2.60, `ray_constants.DASHBOARD_CLIENT_MAX_SIZE`).
MAX_BYTES = 100 << 20
_EPOCH = (1980, 1, 1, 0, 0, 0)  # equal files give equal archives, whenever they are packed


@dataclass(frozen=True, slots=True)
class Shipment:
    """Everything a job gets, by its path in the job's folder, or in that of the package."""

    space: str  # path of the search space in the job's folder
    runner: str
    files: Mapping[str, bytes]
    package: Mapping[str, bytes]

    @property
    def label(self) -> str:
        """Version and content of the shipped partitune, such as `0.1.0+3f2a9c01b7de`."""
        return f"{__version__}+{digest_of(self.package)}"

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of every file before compression, the largest first; those of the package stand under `partitune/`."""
        contents = {**self.files, **{f"partitune/{path}": content for path, content in self.package.items()}}
        return {path: len(contents[path]) for path in sorted(contents, key=lambda path: (-len(contents[path]), path))}

    def archive(self) -> bytes:
        """The study's files as one zip; equal files give equal bytes."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(self.files):
                archive.writestr(zipfile.ZipInfo(path, _EPOCH), self.files[path], zipfile.ZIP_DEFLATED)
        return buffer.getvalue()

    def unpack_package(self, folder: Path) -> Path:
        """Write the package below `folder`; the path to hand to Ray."""
        top = folder / "partitune"
        for path, content in self.package.items():
            (top / path).parent.mkdir(parents=True, exist_ok=True)
            (top / path).write_bytes(content)
        return top


def pack(space: SearchSpace, runner: Runner) -> Shipment:
    """Gather what a study needs.

    Raises:
        SpecError: a named file cannot be read, or all together are more than Ray takes.
    """
    space_path = f"{Kind.SEARCH_SPACE.folder}/{quote(space.name, safe='')[:200]}.yaml"
    runner_path = f"{Kind.RUNNER.folder}/{runner.name}.yaml"
    contents = {space_path: as_yaml(space.resolved()), runner_path: as_yaml(runner.resolved())}
    of_space = {"/".join((FILES, *named.parts[1:])): readable_path(named) for named in _named_files(space)}
    of_runner = {f"{Kind.RUNNER.folder}/{path}": named for path, named in runner.named_files().items()}
    for path, named in {**of_space, **of_runner}.items():
        try:
            contents[path] = named.read_bytes()
        except OSError as error:
            raise SpecError(f"{named}: cannot be shipped: {error.strerror}") from error
    shipment = Shipment(space_path, runner_path, contents, package_files())
    if (size := len(shipment.archive())) > MAX_BYTES:
        path, largest = max(contents.items(), key=lambda item: len(item[1]))
        raise SpecError(
            f"the files of this study are {size >> 20} MiB packed, {path} alone {len(largest) >> 20} MiB unpacked; "
            f"allowed: at most {MAX_BYTES >> 20} MiB, Ray's limit for an upload"
        )
    return shipment


def _named_files(space: SearchSpace) -> list[Path]:
    """The files a search space names: of a model its config.json (and ModelOpt's beside it), and the traces."""
    paths = []
    if (model := space.model_path) is not None:
        config = model / "config.json" if readable_path(model).is_dir() else model
        quantisation = config.parent / "hf_quant_config.json"
        paths += [config, quantisation] if readable_path(quantisation).is_file() else [config]
    return [*paths, *dict.fromkeys(space.trace_paths)]


def package_files() -> dict[str, bytes]:
    """The running partitune with its catalog, by path inside the package; the same from a wheel or a checkout."""
    contents = dict(_walk(files("partitune"), ""))
    for kind in Kind:
        contents.update(_walk(shipped(kind), f"_catalog/{kind.folder}/"))
    return contents


def digest_of(package: Mapping[str, bytes]) -> str:
    """12 hex digits of the package's content; a job that runs the same code has the same."""
    digest = hashlib.sha256()
    for path in sorted(package):
        digest.update(f"{path}\0{len(package[path])}\0".encode() + package[path])
    return digest.hexdigest()[:12]


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _walk(entry, f"{prefix}{entry.name}/")
        elif not entry.name.endswith(".pyc"):
            yield prefix + entry.name, entry.read_bytes()


class _Quoting(yaml.SafeDumper):
    """Every text in double quotes, so that no reader takes one for a number, and nothing said by reference."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - PyYAML's signature
        return True


_Quoting.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(resolved: Mapping[str, Any]) -> bytes:
    """A file of `SpecFile.resolved()` that reads back as the same values."""
    return yaml.dump(dict(resolved), Dumper=_Quoting, sort_keys=False, width=1 << 20, encoding="utf-8")
