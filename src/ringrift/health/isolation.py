"""The one place where bootstrap and health call somebody else's code and outlive its errors.

The error is handed to the caller as a value, who must report it: as a status, an event or a health result.
Cancellation and exits of the process pass through.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

T = TypeVar("T")
log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Attempt(Generic[T]):
    """What a call returned, or how it failed."""

    value: T | None = None
    error: Exception | None = None

    @property
    def problem(self) -> str:
        """The error in one line; empty when there is none."""
        return "" if self.error is None else f"{type(self.error).__name__}: {self.error}"


def attempt(what: str, call: Callable[[], T]) -> Attempt[T]:
    """Call; an error is logged under *what* and returned."""
    try:
        return Attempt(call())
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        _log(what, error)
        return Attempt(error=error)


async def attempt_async(what: str, call: Callable[[], Awaitable[Any] | Any]) -> Attempt[Any]:
    """The same for a call that may return an awaitable."""
    try:
        value = call()
        return Attempt(await value if inspect.isawaitable(value) else value)
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        _log(what, error)
        return Attempt(error=error)


def _log(what: str, error: Exception) -> None:
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    log.warning("isolated.call_failed", what=what, error=repr(error), where=where)
