"""What makes each daemon: the function behind its row of the registry."""

from __future__ import annotations

import importlib
from typing import Any

from ringrift.daemons.registry import product_registry
from ringrift.daemons.running import Factory
from ringrift.daemons.types import DaemonType
from ringrift.errors import ConfigError

__all__ = ["get_entry_points", "get_factory_implementation"]


def get_entry_points() -> dict[DaemonType, str]:
    """Return `module:function` for every daemon that this version has."""
    return {
        spec.daemon_type: spec.entry_point
        for spec in product_registry()
        if spec.entry_point and not spec.unavailable_reason
    }


def get_factory_implementation(daemon_type: DaemonType) -> Factory:
    """Return the function that makes a daemon; `ConfigError` with the reason if this version has none."""
    spec = product_registry()[daemon_type]
    if spec.unavailable_reason:
        raise ConfigError(f"{daemon_type} cannot be made: {spec.unavailable_reason}")
    module, _, name = spec.entry_point.partition(":")
    # Imported when it is asked for: a table of functions would load the modules of all daemons.
    found: Any = getattr(importlib.import_module(module), name)
    if not callable(found):
        raise ConfigError(f"{spec.entry_point} of {daemon_type} is no function")
    factory: Factory = found
    return factory
