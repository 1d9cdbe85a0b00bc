"""`ringrift data gc`: delete local copies that enough other nodes have verified, and nothing else."""

from __future__ import annotations

from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_plane import move_with_bars
from ringrift.cli.data_views import size_text
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import NOTHING, brief, count
from ringrift.data.artifacts import DATA_TYPES, kinds_of
from ringrift.data.copies import DAY_S
from ringrift.data.deletion import Deleter, DeletionRules, DeletionVerdict
from ringrift.data.plane import DataPlane
from ringrift.data.retention import read_held

SHOWN = 50
BY = "ringrift data gc"


@click.command("gc")
@click.option("--dry-run", is_flag=True, help="Only say what would go, and what stays for which reason.")
@click.option(
    "--type", "data_type", type=click.Choice(list(DATA_TYPES)), default="all", help="Only these files."
)
@click.option("--config", default="", metavar="CONFIG", help="Only files of this config.")
@click.option(
    "--min-copies", default=2, show_default=True, type=click.IntRange(1), help="That must stay elsewhere."
)
@click.option(
    "--min-age-days", default=1.0, show_default=True, type=click.FloatRange(0), help="Only older files."
)
@as_json
@on_data_folder
def gc(
    dry_run: bool, data_type: str, config: str, min_copies: int, min_age_days: float, as_json: bool
) -> None:
    """Delete this node's copies of files that enough other nodes have verified and nothing here needs."""
    rules = DeletionRules(copies_min=min_copies, age_s_min=min_age_days * DAY_S)
    with plain_errors():
        rows = move_with_bars(
            lambda plane, progress: _collect(
                plane, progress, rules, data_type=data_type, config=config, dry_run=dry_run
            ),
            quiet=as_json,
        )
    going = [row for row in rows if row["goes"]]
    freed = sum(row["size"] for row in going)
    if as_json:
        print_json({"dry_run": dry_run, "files": len(going), "bytes": freed, "artifacts": rows})
        return
    shown = [
        (brief(row["digest"]), row["name"] or NOTHING, size_text(row["size"]), row["why"]) for row in going
    ]
    if shown:
        print_table(
            "Would go\n" if dry_run else "Deleted\n", ("digest", "name", "size", "why"), shown[:SHOWN]
        )
    stays: dict[str, int] = {}
    for row in rows:
        if not row["goes"]:
            stays[row["why"]] = stays.get(row["why"], 0) + 1
    if stays:
        kept = sorted(stays.items(), key=lambda each: -each[1])[:SHOWN]
        print_table("\nStays\n", ("files", "why"), [(count(number), why) for why, number in kept])
    verb = "would be freed" if dry_run else "freed"
    console().print(f"\n{count(len(going))} of {count(len(rows))} files here, {size_text(freed)} {verb}")


async def _collect(
    plane: DataPlane, progress: Any, rules: DeletionRules, *, data_type: str, config: str, dry_run: bool
) -> list[dict[str, Any]]:
    deleter = Deleter(plane, rules=rules)
    if not dry_run:
        await deleter.finish()
    manifest = await plane.view()
    artifacts = manifest.cards
    held = await read_held(plane, artifacts)
    here = manifest.receipts_at(plane.this.name)
    wanted = [
        each
        for each in artifacts
        if each.digest in here and each.kind in kinds_of(data_type) and config in ("", each.config)
    ]
    task = progress.add_task("looking", total=sum(each.size for each in wanted), files=f"{len(wanted)} files")
    rows = []
    for artifact in wanted:
        held_for = held.get(artifact.digest, "")
        verdict = await deleter.examine(artifact, held_for=held_for, ask=dry_run)
        size = artifact.size
        if verdict.allowed and not dry_run:
            done = await deleter.delete(artifact, why="asked for by a person", by=BY, held_for=held_for)
            verdict, size = done.verdict, done.bytes_freed
            if verdict.allowed and not size and artifact.size:
                verdict = DeletionVerdict(allowed=False, reason="it was not here any more")
        about = {"digest": artifact.digest, "name": artifact.name, "size": size or artifact.size}
        rows.append({**about, "goes": verdict.allowed, "why": verdict.reason})
        progress.advance(task, artifact.size)
    return rows
