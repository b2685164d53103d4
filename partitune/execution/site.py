"""A site's own driver: a class in a Python file beside the runner, `FILE.py:Class`.

Decision: the class is taken from that one file and from nowhere else; no import path decides what runs. Its text
travels with the study, so that a worker on another machine needs no copy. The file has to lie beside the runner or
below: a runner that was copied from somewhere cannot reach for code elsewhere. The class is made once a worker, as
`Class(problem, runner)`, and measures with `measure(candidate)` as every driver does; for each run of a final it is
made anew, with another `runner.benchmark.seed` to draw the load from.
"""

from __future__ import annotations

import os
import sys
import traceback
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from partitune.candidate import Candidate, Measurement
from partitune.execution.driver import Driver
from partitune.execution.processes.masking import keep_secret
from partitune.planning.problem import Problem
from partitune.spec.runner import Runner

#: A driver is a page or two.
LARGEST_BYTES = 1 << 20


class SiteDriver(Driver):
    """The class of a site, made where it is used. Picklable by its text."""

    def __init__(self, problem: Problem, runner: Runner) -> None:
        """Read and check the file.

        Raises:
            SpecError: no such file, outside the runner's folder, broken, or without the class.
        """
        self._problem, self._runner = problem, runner
        self._file, self._name, self._text = _read(runner)
        self._driver: Driver | None = None
        _class(self._runner, self._file, self._name, self._text)

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_driver": None}

    def repeated(self, repeat: int) -> SiteDriver:
        """The driver of run `repeat`: the class made with a runner of other seeds."""
        other = copy(self)
        other._runner, other._driver = self._runner.repeated(repeat), None
        return other

    def measure(self, candidate: Candidate) -> Measurement:
        """What the class measures, which is made for the first candidate in this process."""
        if self._driver is None:
            keep_secret(os.environ.get(name, "") for name in self._runner.forward_env)
            driver = _class(self._runner, self._file, self._name, self._text)
            self._driver = cast("Driver", driver(self._problem, self._runner))
        return self._driver.measure(candidate)


def _read(runner: Runner) -> tuple[str, str, str]:
    """Path, class and text."""
    assert runner.site_driver is not None  # noqa: S101 - only such runners get here
    path, name = runner.site_driver
    try:
        if not path.resolve().is_relative_to(Path(runner.absolute(".")).resolve()):
            raise runner.error("driver", text=f"found {path}; allowed: a file in the folder of this runner, or below")
        if not path.is_file():
            raise runner.error("driver", text=f"found {path}, where no file is; allowed: FILE.py:Class")
        content = path.read_bytes()
        if len(content) > LARGEST_BYTES:
            raise runner.error("driver", text=f"found {path} of {len(content)} bytes; allowed: {LARGEST_BYTES}")
        return str(path), name, content.decode("utf-8")
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        raise runner.error("driver", text=f"found {path}, which cannot be read: {error}") from error
    except UnicodeDecodeError as error:
        raise runner.error("driver", text=f"found {path}, which is not UTF-8: {error}") from error


def _class(runner: Runner, file: str, name: str, text: str) -> type[Any]:
    """Run the file and take the class from it."""
    module = ModuleType(f"partitune_site_{Path(file).stem}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses and pickle look classes up there
    try:
        exec(compile(text, file, "exec"), module.__dict__)  # noqa: S102 - the person's own code, named in the runner
    except Exception as error:
        own_lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        line = getattr(error, "lineno", None) or next(reversed(own_lines), None)
        where = f"{file}:{line}" if line else file
        raise runner.error("driver", text=f"{where} cannot be run: {type(error).__name__}: {error}") from error
    chosen = module.__dict__.get(name)
    if not isinstance(chosen, type):
        own = [key for key, value in module.__dict__.items() if getattr(value, "__module__", "") == module.__name__]
        raise runner.error("driver", text=f"{file} has no class {name}; it has {', '.join(own) or 'none'}")
    if not callable(getattr(chosen, "measure", None)):
        raise runner.error("driver", text=f"{name} of {file} has no method measure(candidate), which every driver has")
    return chosen
