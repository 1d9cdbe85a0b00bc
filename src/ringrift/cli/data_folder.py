"""The data folder that a command works on. Looking at one never makes one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from ringrift.engine.opening import close_engine, get_engine
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError
from ringrift.process import process_scope
from ringrift.settings import Settings, get_settings

T = TypeVar("T")

Data = Annotated[Path | None, typer.Option("--data", help="Data folder; the same as RINGRIFT_DATA_DIR.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def use_data_folder(data: Path | None) -> None:
    """Have this process, and those it starts, work on *data*."""
    if data is not None:
        os.environ["RINGRIFT_DATA_DIR"] = str(data)
        process_scope().drop(Settings)


def ask_engine(question: Callable[[Engine], Awaitable[T]]) -> T:
    """Open the engine of the data folder for one question; `ConfigError` if no run was ever there."""

    async def ask() -> T:
        async with _opened() as engine:
            return await question(engine)

    return asyncio.run(ask())


def has_run() -> bool:
    """Whether a run was ever in the data folder."""
    return get_settings().coordinator_db.exists()


@asynccontextmanager
async def _opened() -> AsyncIterator[Engine]:
    if not has_run():
        raise ConfigError(
            f"there is no run in {get_settings().data_dir}; start one with `ringrift run`, "
            "or name its folder with --data"
        )
    try:
        yield await get_engine()
    finally:
        await close_engine()
