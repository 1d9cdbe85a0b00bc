"""Every coordinator once: its layer, how it is brought up, what it needs, and where it lives.

Both entry points of the documents, the status, the shutdown order and the event registries derive from
`coordinators.csv`. Whether a coordinator is available follows from its capability and from nowhere else.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from types import MappingProxyType

from ringrift.capabilities import capability
from ringrift.errors import ConfigError


class InitPattern(StrEnum):
    """How a coordinator is brought up."""

    WIRE = "wire"  # call its wire function: it subscribes at once, and bootstrap ends it
    GET = "get"  # get its shared object: it subscribes when its owner starts it
    IMPORT = "import"  # import its class: the daemon manager does the rest
    SKIP = "skip"  # a name that is kept and does nothing
    DELEGATE = "delegate"  # a name that is kept for another coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSpec:
    """One row."""

    name: str
    layer: int
    pattern: InitPattern
    capability: str
    entry_point: str = ""  # "module:function"; of a delegate, the name it stands for
    depends_on: tuple[str, ...] = ()
    switch: str = ""  # the enable_* argument; enable_<name> works too
    short_name: str = ""  # its name in the package's quick start
    arguments: tuple[str, ...] = ()  # the bootstrap options that its entry point takes
    needed_for_ready: bool = False
    about: str = ""

    @property
    def not_built_reason(self) -> str:
        return capability(self.capability).reason


def read_registry(text: str) -> Mapping[str, CoordinatorSpec]:
    """Read rows of comma-separated values. `ConfigError` names the first row that is wrong."""
    found: dict[str, CoordinatorSpec] = {}
    for row in csv.DictReader(text.splitlines(), strict=True):
        spec = _read_row(row)
        if spec.name in found:
            raise ConfigError(f"the coordinator {spec.name!r} has two rows")
        found[spec.name] = spec
    return MappingProxyType(found)


def _read_row(row: Mapping[str, str]) -> CoordinatorSpec:
    try:
        return CoordinatorSpec(
            name=row["name"],
            layer=int(row["layer"]),
            pattern=InitPattern(row["pattern"]),
            capability=capability(row["capability"]).name,
            entry_point=row["entry_point"],
            depends_on=tuple(row["depends_on"].split()),
            switch=row["switch"],
            short_name=row["short_name"],
            arguments=tuple(row["arguments"].split()),
            needed_for_ready=row["ready"] == "needed",
            about=row["about"],
        )
    except (ValueError, KeyError, ConfigError) as error:
        raise ConfigError(f"the row of the coordinator {row.get('name')!r} is wrong: {error}") from None


# Leadership stands above all others by its layer alone: one failed daemon must not cost a cluster its leader.
COORDINATOR_REGISTRY: Mapping[str, CoordinatorSpec] = read_registry(
    files("ringrift.bootstrap").joinpath("coordinators.csv").read_text(encoding="utf-8")
)
