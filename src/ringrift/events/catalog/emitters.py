"""`emit_<event>` for every event, and `emit_<event>_sync` for callers that cannot wait.

    await emit_selfplay_complete(config_key="hex8_2p", games_generated=1000, db_path="selfplay.db")

The functions are made from the catalog; `emitters.pyi` beside this file shows them to editors and type
checkers. Each takes its fields by keyword (or in the listed order), `config_key` or `board_type` with
`num_players`, and any further field. It returns True, or raises: a wrong payload is a `PayloadError`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from ringrift.events.catalog.emission import (
    EMITTERS,
    PREFIX,
    SYNC_SUFFIX,
    emit_generic_event,
    emit_optimization_triggered,
    is_critical_event,
    make_async_emitter,
    make_sync_emitter,
)

emit_data_event = emit_generic_event

__all__ = [
    "emit_data_event",
    "emit_generic_event",
    "emit_optimization_triggered",
    "is_critical_event",
    *(f"{PREFIX}{name}{suffix}" for name in EMITTERS for suffix in ("", SYNC_SUFFIX)),
]


@cache
def _make(name: str) -> Callable[..., Any]:
    event = name.removeprefix(PREFIX)
    if event in EMITTERS:
        return make_async_emitter(EMITTERS[event])
    return make_sync_emitter(EMITTERS[event.removesuffix(SYNC_SUFFIX)])


def __getattr__(name: str) -> Callable[..., Any]:
    if name in __all__:
        return _make(name)
    raise AttributeError(f"module {__name__!r} has no emitter {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
