"""The one place of the control side, beside the router, where somebody else's code may raise and we go on.

The error becomes a value; the caller counts, logs and reports it. Cancellation passes through, and so does
the end of the process, except where a daemon asks for it: that is a crash of the daemon.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from ringrift.errors import described
from ringrift.events.handler_steps import await_ending


class Called(NamedTuple):
    """What a call returned, or how it failed."""

    value: Any
    error: Exception | None

    @property
    def problem(self) -> str:
        """The error in one line; empty when there is none."""
        return "" if self.error is None else described(self.error)


def call(function: Callable[[], Any]) -> Called:
    """Call a function."""
    try:
        return Called(function(), None)
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        return Called(None, error)


async def call_async(function: Callable[[], Any], *, timeout_s: float | None = None) -> Called:
    """Call a function, and wait for its result if that is awaitable; a time-out is a `TimeoutError`."""
    try:
        async with asyncio.timeout(timeout_s):
            value = function()
            return Called(await await_ending(value) if inspect.isawaitable(value) else value, None)
    except Exception as error:  # noqa: BLE001 - isolation of foreign code; the caller reports it
        return Called(None, error)


async def live(daemon: Callable[[], Awaitable[None]]) -> Called:
    """Run a daemon to its end."""
    try:
        await daemon()
        return Called(None, None)
    except SystemExit as error:
        return Called(None, RuntimeError(f"called sys.exit({error.code!r})"))
    except Exception as error:  # noqa: BLE001 - the supervisor's boundary: any exception is a crash
        return Called(None, error)
