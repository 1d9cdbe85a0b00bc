"""`ringrift data sync`, `backup` and `restore`: moving files, how far that is, and how long it will take."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_plane import move_with_bars
from ringrift.cli.data_views import files_text, size_text
from ringrift.cli.options import as_json, has_run, on_data_folder
from ringrift.cli.terminal import console
from ringrift.cli.wording import count, duration
from ringrift.data.artifacts import DATA_TYPES, kinds_of
from ringrift.data.backup import ArchiveBackup, BackupReport, the_archive
from ringrift.data.plane import DataPlane
from ringrift.data.run_memory import drop_memory, newest_memory, put_memory, seal_memory
from ringrift.data.sync.facade import SyncFacade
from ringrift.data.sync.requests import PRIORITIES, SyncBackend, SyncRequest, SyncResponse
from ringrift.errors import ConfigError, RingRiftError, Unavailable
from ringrift.settings import get_settings

EXIT_INCOMPLETE = 1
FAILED_SHOWN = 20
_SHORT_DIGEST = re.compile(r"[0-9a-f]{12}")  # as errors of single files name them
_BACKENDS = frozenset(backend.value for backend in SyncBackend)

archive_name = click.argument(
    "archive", required=False, default="", metavar="[ARCHIVE]", help="A node that is an archive."
)
data_type = click.option(
    "--type", "data_type", type=click.Choice(list(DATA_TYPES)), default="all", help="Only these files."
)


@click.command("sync")
@click.argument("targets", nargs=-1, metavar="[NODE]...", help="Nodes to bring files to; all, if none.")
@data_type
@click.option("--from", "source", default=None, metavar="NODE", help="Fetch what this node has.")
@click.option("--exclude", multiple=True, metavar="NODE", help="Not this node; may be given again.")
@click.option("--priority", type=click.Choice(PRIORITIES), default="normal", show_default=True)
@click.option(
    "--timeout", default=3600.0, show_default=True, type=click.FloatRange(0, min_open=True), help="Seconds."
)
@click.option("--limit-mbps", type=click.FloatRange(0, min_open=True), help="Most megabits a second.")
@click.option(
    "--confirm", is_flag=True, help="Have receivers read and hash all files now, also those that they had."
)
@as_json
@on_data_folder
def sync(targets: tuple[str, ...], data_type: str, as_json: bool, **given: Any) -> None:
    """Bring files to the nodes that should have them; only what receivers verified counts."""
    with plain_errors():
        request = SyncRequest(
            data_type=data_type,
            targets=list(targets) or None,
            priority=given["priority"],
            timeout_seconds=given["timeout"],
            bandwidth_limit_mbps=given["limit_mbps"],
            exclude_nodes=list(given["exclude"]),
            require_confirmation=given["confirm"],
            source_node=given["source"],
        )
        found = move_with_bars(lambda plane, _bars: SyncFacade(plane).sync(request), quiet=as_json)
    if as_json:
        print_json({**asdict(found), "backend_used": found.backend_used.value})
    else:
        _tell_sync(found)
    if not found.success:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)


def _tell_sync(found: SyncResponse) -> None:
    out, details = console(), found.details
    word = "Done" if found.success else "Not complete"
    moved = f"{size_text(found.bytes_transferred)} in {duration(found.duration_seconds)}"
    out.print(f"{word}: {files_text(details['files_moved'])}, {moved}")
    if details["nodes"]:
        out.print(f"complete now: {', '.join(details['nodes'])}", markup=False)
    if details["up_to_date"]:
        out.print(f"nothing was missing: {', '.join(details['up_to_date'])}", markup=False)
    for line in (*details["notes"], *_once_each(found)):
        out.print(line, markup=False)
    for node, digests in details["not_confirmed"].items():
        for digest in digests[:FAILED_SHOWN]:
            out.print(f"not confirmed by {node}: {digest}", markup=False)


def _once_each(found: SyncResponse) -> list[str]:
    """Errors without the name of the backend; each backend that was tried says the same of a node or file."""
    told: dict[tuple[str, str], str] = {}
    for error in found.errors:
        first, _, rest = error.partition(": ")
        plain = rest if first in _BACKENDS else error
        node, _, why = plain.partition(": ")
        about, _, _ = why.partition(": ")
        file = about if _SHORT_DIGEST.fullmatch(about) else ""
        told.setdefault((node, file), why if why.startswith(f"{node} ") else plain)
    lines, left_out = list(told.values())[:FAILED_SHOWN], len(told) - FAILED_SHOWN
    return [*lines, f"and {count(left_out)} more"] if left_out > 0 else lines


@click.command("backup")
@archive_name
@data_type
@click.option("--prepare", is_flag=True, help="Make an empty drive an archive first.")
@click.option("--memory", is_flag=True, help="Also what the run remembers: counts, ratings, decisions.")
@as_json
@on_data_folder
def backup(archive: str, data_type: str, prepare: bool, memory: bool, as_json: bool) -> None:
    """Bring this node's files that an archive lacks to it. Nothing there is ever deleted."""

    async def work(plane: DataPlane, _bars: Any) -> BackupReport:
        to = ArchiveBackup(plane, the_archive(plane, archive))
        if prepare:
            await to.prepare()
        if memory:
            await seal_memory(plane)  # first, so that every file it speaks of goes too
        lacking, manifest = await to.lacking(kinds=kinds_of(data_type)), await plane.view()
        here, there = (manifest.receipts_at(node) for node in (plane.this.name, to.archive.name))
        report = await to.send(lacking)
        report.already += len(here.keys() & there.keys())
        return report

    with plain_errors():
        found = move_with_bars(work, quiet=as_json)
    _tell_report(found, "backed up to", as_json=as_json)


@click.command("restore")
@archive_name
@click.option(
    "--digest", "digests", multiple=True, metavar="DIGEST", help="Only this file; may be given again."
)
@data_type
@click.option("--config", default="", metavar="CONFIG", help="Only files of this config.")
@click.option("--memory", is_flag=True, help="Into an empty folder: all files, and the run goes on.")
@as_json
@on_data_folder
def restore(
    archive: str, digests: tuple[str, ...], data_type: str, config: str, memory: bool, as_json: bool
) -> None:
    """Bring files of an archive here and verify every byte, also of those that are here."""

    async def work(plane: DataPlane, _bars: Any) -> BackupReport:
        source = ArchiveBackup(plane, the_archive(plane, archive))
        cards = await source.archived()
        wanted = {text: [card for card in cards if card.artifact.digest.startswith(text)] for text in digests}
        for text, found in wanted.items():
            if len(found) != 1:
                raise ConfigError(f"{len(found)} files of the archive begin with {text!r}")
        chosen = [card for found in wanted.values() for card in found] if digests else cards
        kinds = kinds_of(data_type)
        fitting = [
            card for card in chosen if card.artifact.kind in kinds and config in ("", card.artifact.config)
        ]
        return await source.restore(fitting)

    with plain_errors():
        if memory:
            _restore_memory(archive, quiet=as_json)
        found = move_with_bars(work, quiet=as_json, may_make=True)
    _tell_report(found, "restored from", as_json=as_json)


def _restore_memory(archive: str, *, quiet: bool) -> None:
    """Fetch the newest memory into an empty folder and make it the folder's own."""
    settings = get_settings()
    if has_run():
        raise ConfigError(
            f"{settings.data_dir} has a run, which keeps its memory; name an empty folder with --data"
        )

    async def fetch(plane: DataPlane, _bars: Any) -> Path:
        source = ArchiveBackup(plane, the_archive(plane, archive))
        cards = {card.artifact.digest: card for card in await source.archived()}
        found = newest_memory(card.artifact for card in cards.values())
        if found is None:
            raise ConfigError("the archive has no memory of a run; `ringrift data backup --memory` makes one")
        report = await source.restore([cards[found.digest]])
        sealed = await plane.blobs.path(found.digest)
        if report.failed or sealed is None:
            raise Unavailable(f"the memory did not arrive: {report.failed.get(found.digest, 'no file')}")
        return sealed

    try:
        put_memory(move_with_bars(fetch, quiet=quiet, may_make=True), settings.coordinator_db)
    except RingRiftError:
        drop_memory(settings.coordinator_db)  # the folder is as empty of runs as it was
        raise


def _tell_report(found: BackupReport, verb: str, *, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
    else:
        already = f"{files_text(found.already)} there already"
        console().print(
            f"{files_text(found.files)}, {count(found.games)} games, {size_text(found.bytes)} {verb} "
            f"{found.archive}; {already}",
            markup=False,
        )
        for digest, why in list(found.failed.items())[:FAILED_SHOWN]:
            console().print(f"failed: {digest}: {why}", markup=False)
    if found.failed:
        raise click.exceptions.Exit(EXIT_INCOMPLETE)
