"""Asking the engine of the data folder that a command works on. Looking at one never makes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from ringrift.bootstrap.master_loop import is_master_loop_running
from ringrift.cli.options import has_run
from ringrift.engine.opening import allow_new_database, close_engine, get_engine
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError, Unavailable
from ringrift.learning.high_water import check_not_lost
from ringrift.learning.run_check import mark_outside_a_run
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings

T = TypeVar("T")


def ask_engine(question: Callable[[Engine], Awaitable[T]]) -> T:
    """Open the engine of the data folder for one question; `ConfigError` if no run was ever there."""
    return asyncio.run(_ask(question, changes=False))


def change_engine(change: Callable[[Engine], Awaitable[T]]) -> T:
    """As `ask_engine`, for what writes: the mark of a run that is stopped covers it."""
    return asyncio.run(_ask(change, changes=True))


async def _ask(question: Callable[[Engine], Awaitable[T]], *, changes: bool) -> T:
    async with opened_engine(changes=changes) as engine:
        return await question(engine)


@asynccontextmanager
async def opened_engine(
    *, may_make: bool = False, may_have_arrivals: bool = False, changes: bool = False
) -> AsyncIterator[Engine]:
    """The engine for a while; `ConfigError` if no run was ever there, `Corrupt` if its database is lost.

    With *may_make* one is made whatever is there, with *may_have_arrivals* where all files are from others.
    What is written to it belongs into the mark of the run (*changes*).
    """
    if may_make:
        allow_new_database()
    elif not has_run():
        check_not_lost(get_settings())
        if not may_have_arrivals:
            raise ConfigError(
                f"there is no run in {get_settings().data_dir}; start one with `ringrift run`, "
                "or name its folder with --data"
            )
    try:
        engine = await get_engine()
        try:
            yield engine
        except Unavailable:
            changes = False  # nobody can write now, and to try would only take time
            raise
        finally:
            if changes and not is_master_loop_running():  # the mark of a live run is its own to write
                await mark_outside_a_run(engine.kv, system_runtime(), get_settings().data_dir)
    finally:
        await close_engine()
