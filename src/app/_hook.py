"""Serves the modules of the alias table, each when it is first asked for.

A module of a capability that is not built cannot be imported, and a name of one cannot be taken: both
raise `PlannedModule`, which names the capability and what it comes with.
"""

from __future__ import annotations

import difflib
import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from app._table import ALIASES, Alias
from ringrift.capabilities import capability
from ringrift.errors import NotBuilt

if TYPE_CHECKING:
    from importlib.abc import Loader


class PlannedModule(NotBuilt, ModuleNotFoundError):
    """The path is known; what it leads to comes with a later part."""

    def __init__(self, path: str, capability_name: str) -> None:
        super().__init__(capability_name, planned_with=capability(capability_name).part.value)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path}: {super().__str__()}"


class AliasModule(ModuleType):
    """One path of the documents; looks every name up among the public ones of its homes."""

    alias: Alias

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return self.__dir__()
        if name.startswith("__") or "alias" not in self.__dict__:
            raise AttributeError(name)
        value = self._find(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        listed = {name for home in self.alias.built_homes() for name in _public(home)}
        since_built = {name for name, owner in self.alias.planned.items() if capability(owner).built}
        return sorted(listed | set(self.alias.names) | since_built)

    def _find(self, name: str) -> Any:
        if target := self.alias.names.get(name):
            module, _, attribute = target.partition(":")
            return getattr(importlib.import_module(module), attribute)
        if owner := self.alias.planned.get(name):
            if not capability(owner).built:
                raise PlannedModule(f"{self.__name__}.{name}", owner)
            return getattr(importlib.import_module(capability(owner).home), name)
        for home in self.alias.built_homes():
            if name in _public(home):
                return getattr(importlib.import_module(home), name)
        if f"{self.__name__}.{name}" in ALIASES:
            return importlib.import_module(f"{self.__name__}.{name}")
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}{_hint(name, dir(self))}")


class AliasFinder:
    """Finds and loads the modules of the table; stands behind the finders of real files.

    It has the methods of `importlib.abc` without its bases, which would load half the library.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("app."):
            return None
        alias = ALIASES.get(fullname)
        if alias is None:
            hint = _hint(fullname, ALIASES)
            raise ModuleNotFoundError(f"no module {fullname}{hint}", name=fullname)
        if not alias.available:
            raise PlannedModule(fullname, alias.capability)
        is_package = any(other.startswith(f"{fullname}.") for other in ALIASES)
        return ModuleSpec(fullname, cast("Loader", self), origin="alias table", is_package=is_package)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = AliasModule(spec.name)
        module.alias = ALIASES[spec.name]
        return module

    def exec_module(self, module: ModuleType) -> None:
        replacement = ALIASES[module.__name__].deprecated
        if replacement:
            message = f"{module.__name__} is deprecated; import from {replacement}"
            warnings.warn(message, DeprecationWarning, stacklevel=2)


def install() -> None:
    """Put the finder in place; a second call changes nothing."""
    if not any(isinstance(finder, AliasFinder) for finder in sys.meta_path):
        sys.meta_path.append(AliasFinder())


def _public(home: str) -> list[str]:
    # What a home does not list stays inside: what it imports, and its submodules.
    listed: list[str] = importlib.import_module(home).__all__
    return listed


def _hint(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
