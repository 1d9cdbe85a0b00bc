"""Asking the engine of the data folder that a command works on. Looking at one never makes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from ringrift.cli.options import has_run
from ringrift.engine.opening import allow_new_database, close_engine, get_engine
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError
from ringrift.learning.high_water import check_not_lost
from ringrift.settings import get_settings

T = TypeVar("T")


def ask_engine(question: Callable[[Engine], Awaitable[T]]) -> T:
    """Open the engine of the data folder for one question; `ConfigError` if no run was ever there."""

    async def ask() -> T:
        async with opened_engine() as engine:
            return await question(engine)

    return asyncio.run(ask())


@asynccontextmanager
async def opened_engine(*, may_make: bool = False, may_have_arrivals: bool = False) -> AsyncIterator[Engine]:
    """The engine for a while; `ConfigError` if no run was ever there, `Corrupt` if its database is lost.

    With *may_make* one is made whatever is there, with *may_have_arrivals* where all files are from others.
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
        yield await get_engine()
    finally:
        await close_engine()
