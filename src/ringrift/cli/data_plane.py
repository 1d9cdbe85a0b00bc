"""The data plane of the data folder that a command works on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click
from rich.progress import Progress

from ringrift.cli.data_folder import opened_engine
from ringrift.cli.data_progress import WatchedTransfers, bars
from ringrift.data.arrivals import take_over_arrivals
from ringrift.data.artifacts import Artifact
from ringrift.data.cataloguer import Cataloguer
from ringrift.data.plane import DataPlane, close_data_plane, open_data_plane
from ringrift.data.transfer.archives import is_archive
from ringrift.engine.digests import is_digest
from ringrift.errors import ConfigError
from ringrift.settings import get_settings

T = TypeVar("T")

DIGEST_CHARS_MIN = 4


def ask_plane(question: Callable[[DataPlane], Awaitable[T]], *, may_make: bool = False) -> T:
    """Open the data plane for one question; what jobs made and nodes brought is in the manifest first.

    *may_make* is for what brings the state of a run. A folder that only ever took in files of other nodes had
    no run, and there is something to ask about; one with files of its own has lost its database.
    """
    holds_files = get_settings().blob_dir.is_dir()

    async def ask() -> T:
        async with opened_engine(may_make=may_make, may_have_arrivals=holds_files, changes=True):
            try:
                plane = await open_data_plane()
                _say_if_unnamed(plane)
                await Cataloguer(plane).catalogue()
                await take_over_arrivals(plane)
                return await question(plane)
            finally:
                await close_data_plane()

    return asyncio.run(ask())


def _say_if_unnamed(plane: DataPlane) -> None:
    """A machine under a name of its own has none of its node's files, which looks as if all were well."""
    others = [node.name for node in plane.nodes.others() if not is_archive(node)]
    if others and plane.this.name not in (plane.settings.nodes or {}):
        told = f"this machine goes by {plane.this.name!r}, which is no node of the config file"
        click.echo(f"note: {told}; RINGRIFT_NODE_ID says which it is: {', '.join(others)}", err=True)


def move_with_bars(
    work: Callable[[DataPlane, Progress], Awaitable[T]], *, quiet: bool, may_make: bool = False
) -> T:
    """Open the data plane for work that moves files, and show how far it is."""

    async def watched(shared: DataPlane) -> T:
        with bars(quiet=quiet) as progress:
            plane = DataPlane(
                shared.engine,
                shared.settings,
                shared.runtime,
                nodes=shared.nodes,
                make_transfers=lambda _plane: WatchedTransfers(shared.transfers, progress),
                make_holders=lambda _plane: shared.holders,
                holder=shared.holder,
            )
            return await work(plane, progress)

    return ask_plane(watched, may_make=may_make)


async def find_artifact(plane: DataPlane, text: str) -> Artifact:
    """The artifact whose digest begins with *text*; `ConfigError` if there is none, or more than one."""
    if is_digest(text):
        found = [each for each in [await plane.manifest.artifact(text)] if each is not None]
    elif len(text) < DIGEST_CHARS_MIN:
        raise ConfigError(f"give at least {DIGEST_CHARS_MIN} characters of the digest")
    else:
        known = (await plane.view()).cards
        found = [each for each in known if each.digest.startswith(text) or each.name == text]
    if len(found) != 1:
        told = "no artifact is" if not found else f"{len(found)} artifacts are"
        raise ConfigError(f"{told} called {text!r}; `ringrift data ls` lists them")
    return found[0]
