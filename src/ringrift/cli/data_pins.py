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
    """Keep files on every node that has them, until they are unpinned.

    The pin is recorded on this node, which need not have the file: whoever wants to delete a copy asks all
    nodes. While this one does not answer, others do not know of it.
    """

    async def keep(plane: DataPlane, artifact: Artifact) -> str:
        await retention.pin(plane.kv, artifact.digest, why)
        if await plane.blobs.has(artifact.digest):
            return "pinned"
        where = ", ".join(sorted(each.node for each in await plane.manifest.copies(artifact.digest)))
        return f"pinned; this node has no copy, others ({where or 'none is known'}) keep theirs if it answers"

    _tell(_each(digests, keep), "pinned", as_json=as_json)


@click.command("unpin")
@click.argument("digests", nargs=-1, required=True, metavar="DIGEST...")
@as_json
@on_data_folder
def unpin(digests: tuple[str, ...], as_json: bool) -> None:
    """Let the rules of clean-up decide about files again."""

    async def let_go(plane: DataPlane, artifact: Artifact) -> str:
        return "unpinned" if await retention.unpin(plane.kv, artifact.digest) else "was not pinned"

    _tell(_each(digests, let_go), "unpinned", as_json=as_json)


def _each(
    texts: tuple[str, ...], act: Callable[[DataPlane, Artifact], Awaitable[str]]
) -> list[tuple[Artifact, str]]:
    """What came of each; nothing is done unless all of them are known."""

    async def work(plane: DataPlane) -> list[tuple[Artifact, str]]:
        found = [await find_artifact(plane, text) for text in texts]
        return [(artifact, await act(plane, artifact)) for artifact in found]

    with plain_errors():
        return ask_plane(work)


def _tell(done: list[tuple[Artifact, str]], changed: str, *, as_json: bool) -> None:
    if as_json:
        rows = [{"digest": artifact.digest, changed: told.startswith(changed)} for artifact, told in done]
        print_json(rows)
        return
    for artifact, told in done:
        console().print(f"{brief(artifact.digest)} {artifact.name}: {told}", markup=False)
