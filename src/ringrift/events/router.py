"""The router of this process."""

from __future__ import annotations

from ringrift.events.dead_letter_queue import ProcessDeadLetters
from ringrift.events.positions import process_log_connection
from ringrift.events.unified_router import Surroundings, UnifiedEventRouter
from ringrift.process import process_scope
from ringrift.settings import get_settings


def get_router() -> UnifiedEventRouter:
    """Return the router of this process."""
    return process_scope().get(UnifiedEventRouter, _make_router)


def _make_router() -> UnifiedEventRouter:
    settings = get_settings()
    around = Surroundings(
        settings=settings, log_connection=process_log_connection(settings), dead_letters=ProcessDeadLetters()
    )
    return UnifiedEventRouter(surroundings=around)


def reset_router() -> None:
    """Drop the router of this process; the next `get_router` makes a fresh one."""
    router = process_scope().drop(UnifiedEventRouter)
    if router is not None:
        router.let_go()
