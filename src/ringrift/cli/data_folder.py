"""Asking the engine of the data folder that a command works on. Looking at one never makes one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import TypeVar

from ringrift.cli.command import has_run
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.engine.opening import allow_new_database, close_engine, get_engine
from ringrift.engine.ports import Engine, KeyValue
from ringrift.errors import ConfigError, Unavailable
from ringrift.health.run_status import read_run_choice
from ringrift.learning.facts.high_water import check_not_lost
from ringrift.learning.facts.ledger import known_configs as configs_with_facts
from ringrift.learning.facts.store_check import mark_outside_a_run
from ringrift.runtime import system_runtime

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
    # A lost database must not be taken for a folder in which nothing ever ran.
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


# The configs of a data folder, and an answer for one that is not among them.


async def configs_of(kv: KeyValue) -> tuple[str, ...]:
    """Those that were ever learned here, and those that a run was asked for."""
    chosen = await read_run_choice(kv)
    asked = () if chosen is None else chosen.configs
    # in the order in which they were asked for
    return tuple(dict.fromkeys((*asked, *await configs_with_facts(kv))))


async def require_config(kv: KeyValue, config: str) -> str:
    """Return *config*; `ConfigError` that lists those there are if it is none of this folder."""
    known = await configs_of(kv)
    if config in known:
        return config
    if not known:
        raise ConfigError(f"{config!r} is not learned here; this folder has no configs yet")
    near = get_close_matches(config, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"{config!r} is not learned here; there are {', '.join(known)}{hint}")
