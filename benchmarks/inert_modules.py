"""An unpacked wheel's modules without what they depend on.

Decision: what decides runs, the rest is inert. A few modules of the package are named as real; every other one, and
every package that is not to be had or not wanted, is a module whose every name is a class that does nothing: it can be
derived from, called, subscripted, put into a union, entered, or used as a decorator (of which it hands back the
function or class). What is inert is false, equals itself only, and cannot be counted with or walked over: where a
decision hangs on it after all, the run stops instead of going wrong.
"""

from __future__ import annotations

import importlib.util
import sys
from abc import ABCMeta
from collections.abc import Iterable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

_INERT = "_inert"


class _Does(ABCMeta):
    """What can be done with an inert name."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: object) -> _Does:
        return super().__new__(cls, name, bases, namespace)

    def __init__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **_: object) -> None:
        super().__init__(name, bases, namespace)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if _INERT not in vars(cls):
            raise AttributeError(f"{cls.__name__} has no {name}, and what it derives from is inert")
        setattr(cls, name, value := inert(f"{cls.__name__}.{name}"))
        return value

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        if _INERT not in vars(cls):
            return super().__call__(*arguments, **named)
        decorated = len(arguments) == 1 and not named and isinstance(arguments[0], (FunctionType, type))
        return arguments[0] if decorated and not isinstance(arguments[0], _Does) else cls

    def __getitem__(cls, _: object) -> _Does:
        return cls

    __iter__ = None  # or what can be subscripted could be walked over, for ever

    def __enter__(cls) -> _Does:
        return cls

    def __exit__(cls, *_: object) -> None:
        return None

    def __bool__(cls) -> bool:
        return _INERT not in vars(cls)


class _Nothing(metaclass=_Does):
    """The base of inert names. What is derived from one keeps what it is given by name."""

    def __init__(self, *_: object, **named: object) -> None:
        vars(self).update(named)

    def __init_subclass__(cls, **_: object) -> None:
        super().__init_subclass__()


def inert(name: str) -> Any:
    """A name that does nothing."""
    return _Does(name, (_Nothing,), {_INERT: True})


class _Bare(Loader):
    """Makes modules whose every name is inert, but for those given."""

    def __init__(self, names: Mapping[str, object]) -> None:
        self._names = names

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """A module that makes up its names."""
        return _InertModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Put in what is given."""
        vars(module).update(self._names)


class _InertModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, value := inert(f"{self.__name__}.{name}"))
        return value


class WheelFinder(MetaPathFinder):
    """Finds the modules of one package in a folder, real or inert, and inert ones for other packages.

    Args:
        root: holds the package.
        package: its name.
        real: modules that run as they are; with a dot at the end, all those below.
        inert_packages: what else is inert.
        given: names of inert modules that are to hold something, by module.
    """

    def __init__(
        self,
        root: Path,
        package: str,
        real: Sequence[str],
        inert_packages: Iterable[str],
        given: Mapping[str, Mapping[str, object]] = {},
    ) -> None:
        self._root, self._package, self._given = root, package, given
        self._real = {name for name in real if not name.endswith(".")}
        self._below = tuple(name for name in real if name.endswith("."))
        self._inert_packages = frozenset(inert_packages)

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """As the import system asks."""
        top = fullname.partition(".")[0]
        if top in self._inert_packages:
            return ModuleSpec(fullname, _Bare(self._given.get(fullname, {})), is_package=True)
        if top != self._package:
            return None
        if fullname in self._real or fullname.startswith(self._below):
            return self._file(fullname)
        return ModuleSpec(fullname, _Bare(self._given.get(fullname, {})), is_package=True)

    def _file(self, fullname: str) -> ModuleSpec | None:
        place = self._root.joinpath(*fullname.split("."))
        if place.is_dir():
            init = place / "__init__.py"
            return importlib.util.spec_from_file_location(fullname, init, submodule_search_locations=[str(place)])
        file = place.with_suffix(".py")
        return importlib.util.spec_from_file_location(fullname, file) if file.is_file() else None

    def install(self) -> None:
        """Go before all other finders. Raises RuntimeError where the package was imported already."""
        if self._package in sys.modules:
            raise RuntimeError(f"{self._package} is imported already; one process reads one wheel")
        sys.meta_path.insert(0, self)
