"""`emit_<event>` for every event, and `emit_<event>_sync` for callers that cannot wait.

    await emit_selfplay_complete(config_key="hex8_2p", games_generated=1000, db_path="selfplay.db")

The functions are made from the catalog; `event_emitters.pyi` beside this file shows them to editors and type
checkers. Each takes its fields by keyword (or in the listed order), `config_key` or `board_type` with
`num_players`, and any further field. It returns True, or raises: a wrong payload is a `PayloadError`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

from ringrift.coordination.event_normalization import get_event_validator
from ringrift.coordination.event_router import get_router
from ringrift.errors import ConfigError
from ringrift.events.catalog.emission import (
    EMITTERS,
    PREFIX,
    SYNC_SUFFIX,
    emit,
    is_critical_event,
    make_async_emitter,
    make_sync_emitter,
)
from ringrift.events.catalog.names import EventTypeValidator
from ringrift.events.unified_router import UnifiedEventRouter

_OPTIMIZATIONS = {"cmaes": "CMAES_TRIGGERED", "nas": "NAS_TRIGGERED"}

__all__ = [
    "emit_data_event",
    "emit_generic_event",
    "emit_optimization_triggered",
    "is_critical_event",
    *(f"{PREFIX}{name}{suffix}" for name in EMITTERS for suffix in ("", SYNC_SUFFIX)),
]


def _sender() -> tuple[UnifiedEventRouter, EventTypeValidator]:
    return get_router(), get_event_validator()


async def emit_generic_event(
    event_type: Any, payload: Mapping[str, Any] | None = None, source: str = ""
) -> bool:
    """Publish any event, known to the catalog or not, as the router takes it."""
    await get_router().publish(event_type, dict(payload or {}), source)
    return True


emit_data_event = emit_generic_event


async def emit_optimization_triggered(
    optimization_type: Literal["cmaes", "nas"], run_id: str, reason: str, *, source: str = "", **fields: Any
) -> bool:
    """Publish CMAES_TRIGGERED or NAS_TRIGGERED."""
    if optimization_type not in _OPTIMIZATIONS:
        raise ConfigError(f"optimization_type is {optimization_type!r}; it must be cmaes or nas")
    spec = EMITTERS[_OPTIMIZATIONS[optimization_type].lower()]
    return await emit(_sender, spec, (), {**fields, "run_id": run_id, "reason": reason}, source)


@cache
def _make(name: str) -> Callable[..., Any]:
    event = name.removeprefix(PREFIX)
    if event in EMITTERS:
        return make_async_emitter(EMITTERS[event], _sender)
    return make_sync_emitter(EMITTERS[event.removesuffix(SYNC_SUFFIX)], _sender)


def __getattr__(name: str) -> Callable[..., Any]:
    if name in __all__:
        return _make(name)
    raise AttributeError(f"module {__name__!r} has no emitter {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
