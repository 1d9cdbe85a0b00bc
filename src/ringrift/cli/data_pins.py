"""`ringrift data pin|unpin`: what a person wants kept, whatever copies there are."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_plane import ask_plane, find_artifact
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console
from ringrift.cli.wording import brief
from ringrift.data import retention
from ringrift.data.artifacts import Artifact
from ringrift.data.plane import DataPlane

BY_HAND = "by hand"


@click.command("pin")
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@click.option(
    "--why", default=BY_HAND, show_default=True, help="Shown wherever the file stays because of it."
)
@as_json
@on_data_folder
def pin(digests: tuple[str, ...], why: str, as_json: bool) -> None:
    """Keep files on every node that has them, until they are unpinned."""

    async def keep(plane: DataPlane, artifact: Artifact) -> bool:
        await retention.pin(plane.kv, artifact.digest, why)
        return True

    _tell(_each(digests, keep), "pinned", "", as_json=as_json)


@click.command("unpin")
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@as_json
@on_data_folder
def unpin(digests: tuple[str, ...], as_json: bool) -> None:
    """Let the rules of clean-up decide about files again."""

    async def let_go(plane: DataPlane, artifact: Artifact) -> bool:
        return await retention.unpin(plane.kv, artifact.digest)

    _tell(_each(digests, let_go), "unpinned", "was not pinned", as_json=as_json)


def _each(
    texts: tuple[str, ...], act: Callable[[DataPlane, Artifact], Awaitable[bool]]
) -> list[tuple[Artifact, bool]]:
    """Nothing is done unless all of them are known."""

    async def work(plane: DataPlane) -> list[tuple[Artifact, bool]]:
        found = [await find_artifact(plane, text) for text in texts]
        return [(artifact, await act(plane, artifact)) for artifact in found]

    with plain_errors():
        return ask_plane(work)


def _tell(done: list[tuple[Artifact, bool]], changed: str, unchanged: str, *, as_json: bool) -> None:
    if as_json:
        print_json([{"digest": artifact.digest, changed: was_done} for artifact, was_done in done])
        return
    for artifact, was_done in done:
        told = changed if was_done else unchanged
        console().print(f"{brief(artifact.digest)} {artifact.name}: {told}", markup=False)
