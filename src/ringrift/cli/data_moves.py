"""`ringrift data sync`: bringing files to nodes, how far that is, and how long it will take."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_plane import move_with_bars
from ringrift.cli.data_views import files_text, size_text
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console
from ringrift.cli.wording import count, duration
from ringrift.data.artifacts import DATA_TYPES
from ringrift.data.sync.facade import SyncFacade
from ringrift.data.sync.requests import PRIORITIES, SyncBackend, SyncRequest, SyncResponse

EXIT_INCOMPLETE = 1
FAILED_SHOWN = 20
_SHORT_DIGEST = re.compile(r"[0-9a-f]{12}")  # as errors of single files name them
_BACKENDS = frozenset(backend.value for backend in SyncBackend)

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
