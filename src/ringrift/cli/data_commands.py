"""`ringrift data`: what exists, where verified copies are, and what a person may do about it."""

from __future__ import annotations

import logging
from collections import Counter
from dataclasses import replace
from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_archives import backup, check, restore
from ringrift.cli.data_gc import gc
from ringrift.cli.data_moves import sync
from ringrift.cli.data_pins import pin, unpin
from ringrift.cli.data_plane import ask_plane, find_artifact, move_with_bars
from ringrift.cli.data_views import (
    COPY_COLUMNS,
    LS_COLUMNS,
    LS_WIDE_COLUMNS,
    WIDE,
    Replicas,
    artifact_rows,
    copy_rows,
    describe_artifact,
    files_text,
    read_replicas,
    shown_row,
    size_text,
)
from ringrift.cli.logs import log_to_stderr
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import NOTHING, clock, count
from ringrift.data.artifacts import DATA_TYPES, ArtifactKind
from ringrift.data.orphans import Orphans, register_orphans
from ringrift.data.plane import DataPlane
from ringrift.data.replication import ReplicationRepairDaemon
from ringrift.data.scrubbing import Scrubbed, read_unregistered, scrub
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings
from ringrift.tls import own_files

EXIT_DAMAGED = 1
LISTED = 50
REPAIRS_SHOWN = 10
UNLIMITED = 1 << 62

data_type = click.option(
    "--type", "data_type", type=click.Choice(list(DATA_TYPES)), default="all", help="Only these files."
)
one_config = click.option("--config", default="", metavar="CONFIG", help="Only files of this config.")


@click.group("data")
@as_json
@on_data_folder
def data(as_json: bool) -> None:  # noqa: ARG001 (for the commands below it)
    """Artifacts: what exists, where verified copies are; sync, backup, clean-up."""
    log_to_stderr(logging.ERROR)  # what fails on the way is in the answer, in words


@data.command("ls")
@data_type
@one_config
@click.option("--node", default="", metavar="NODE", help="Only files that this node has.")
@click.option("--limit", default=LISTED, show_default=True, type=click.IntRange(1), help="Newest so many.")
@as_json
@on_data_folder
def ls(data_type: str, config: str, node: str, limit: int, as_json: bool) -> None:
    """List artifacts, the newest last, with their copies."""
    with plain_errors():
        rows = ask_plane(lambda plane: artifact_rows(plane, data_type=data_type, config=config, node=node))
    if as_json:
        print_json(rows)
        return
    if not rows:
        console().print("No artifact is known that fits.")
        return
    columns = LS_WIDE_COLUMNS if console().width >= WIDE else LS_COLUMNS
    shown = [shown_row(row)[: len(columns)] for row in rows[-limit:]]
    print_table("Artifacts\n", columns, shown, cut=columns[-1])
    shards = [row for row in rows if row["kind"] == ArtifactKind.GAMES]  # samples are made of their games
    games, size = sum(row["games"] for row in shards), sum(row["size"] for row in rows)
    left_out = f", the newest {limit} of them shown" if len(rows) > limit else ""
    console().print(f"\n{count(len(rows))} artifacts, {count(games)} games, {size_text(size)}{left_out}")


@data.command("show")
@click.argument("digest", help="The digest, its first characters, or a name.")
@as_json
@on_data_folder
def show(digest: str, as_json: bool) -> None:
    """Everything that is known of one artifact: copies, what holds it, what was decided."""
    with plain_errors():
        found = ask_plane(lambda plane: _described(plane, digest))
    if as_json:
        print_json(found)
        return
    card = found["artifact"]
    out = console()
    out.print(f"{card['kind']} {card['name']} {card['digest']}", markup=False)
    about = f"{size_text(card['size'])}, {count(card['games'])} games, {count(card['rows'])} rows"
    out.print(f"{card['config'] or 'no config'}, {about}, made {clock(card['created_s'], with_date=True)}")
    out.print(f"needed here: {found['held_for'] or 'no'}", markup=False)
    out.print(
        f"may its copy here go? {'yes' if found['may_delete'] else 'no'}: {found['why']}\n", markup=False
    )
    print_table("Copies", COPY_COLUMNS, copy_rows(found["copies"]))
    if found["decisions"]:
        rows = [
            (clock(each["at_s"], with_date=True), each["node"], each["action"], each["reason"])
            for each in found["decisions"]
        ]
        print_table("\nDecisions", ("when", "node", "what", "why"), rows)


@data.command("verify")
@click.argument("digests", nargs=-1, metavar="[DIGEST]...", help="Only these; without any, all files here.")
@click.option(
    "--older-than-days", default=0.0, type=click.FloatRange(0), help="Only those not read for so long."
)
@as_json
@on_data_folder
def verify(digests: tuple[str, ...], older_than_days: float, as_json: bool) -> None:
    """Read this node's files again and compare every byte; exit code 1 if one is damaged or missing."""
    with plain_errors():
        found, orphans = move_with_bars(
            lambda plane, progress: _verified(plane, progress, digests, older_than_days), quiet=as_json
        )
    if as_json:
        print_json({"scrubbed": _plain(found), "registered": [each.digest for each in orphans.registered]})
    else:
        console().print(f"{files_text(found.verified)} good ({size_text(found.bytes)} read).")
        for digest in found.damaged:
            console().print(f"damaged, set aside: {digest}", markup=False)
        for digest in found.missing:
            console().print(f"missing, struck from the manifest: {digest}", markup=False)
        for artifact in orphans.registered:
            console().print(f"registered: {artifact.kind} {artifact.digest}", markup=False)
    if found.damaged or found.missing:
        raise click.exceptions.Exit(EXIT_DAMAGED)


@data.command("replicas")
@click.option("--repair", is_flag=True, help="Make the copies that are missing, then look again.")
@as_json
@on_data_folder
def replicas(repair: bool, as_json: bool) -> None:
    """How many verified copies there are of what, and what is missing where."""
    with plain_errors():
        found = move_with_bars(lambda plane, _bars: _replicas(plane, repair=repair), quiet=as_json)
    if as_json:
        print_json(found.as_json())
        return
    _print_replicas(found)


def _print_replicas(found: Replicas) -> None:
    plan, out = found.plan, console()
    if not plan.total:
        out.print("No artifact is known yet.")
        return
    rows = [(str(copies), count(number)) for copies, number in sorted(found.by_copies.items())]
    print_table("Verified copies\n", ("copies", "artifacts"), rows)
    out.print(f"\nscore {plan.score:.0f} of 100: {found.verdict}; {plan.under} below the minimum")
    if found.here:
        out.print(f"critical: {found.here}", markup=False)
    for node, why in found.unknown.items():
        out.print(f"{node} does not answer, so its copies are not known: {why}", markup=False)
    for alert in plan.alerts:
        out.print(f"{alert.level}: {alert.message}", markup=False)
    wanted = [
        (
            each.artifact.digest[:10],
            each.artifact.kind.value,
            each.artifact.config or NOTHING,
            f"{each.source} to {each.target}",
            each.reason,
        )
        for each in plan.repairs[:REPAIRS_SHOWN]
    ]
    if wanted:
        columns = ("digest", "kind", "config", "way", "why")
        print_table("\nCopies to make\n", columns, wanted, cut="why")
    if len(plan.repairs) > REPAIRS_SHOWN:
        out.print(f"and {count(len(plan.repairs) - REPAIRS_SHOWN)} more")
    for digest, why in list(plan.stuck.items())[:LISTED]:
        out.print(f"cannot be repaired: {digest[:10]}: {why}", markup=False)
    for why, number in Counter(found.failures.values()).most_common(LISTED):
        out.print(f"not repaired: {files_text(number)}: {why}", markup=False)
    if found.resting:
        out.print(
            f"{files_text(found.resting)} had a try that failed in the last 10 minutes; "
            "`ringrift data show DIGEST` tells why"
        )


@data.command()
@as_json
@on_data_folder
def fingerprint(as_json: bool) -> None:
    """Print the fingerprint of this node's key, which other nodes name to be sure that it is this one."""
    with plain_errors():
        settings, runtime = get_settings(), system_runtime()
        found = own_files(settings, runtime).fingerprint()
    name = settings.node_name or runtime.hostname
    if as_json:
        print_json({"node": name, "data_tls_sha256": found, "data_tls": settings.data_tls})
        return
    console().print(
        f'[nodes.{name}]\ndata_tls_sha256 = "{found}"', markup=False, highlight=False, soft_wrap=True
    )
    if not settings.data_tls:
        console().print("this node's data server does not speak TLS yet: data_tls = true", style="yellow")


data.add_command(sync)
data.add_command(backup)
data.add_command(restore)
data.add_command(check)
data.add_command(gc)
data.add_command(pin)
data.add_command(unpin)


async def _described(plane: DataPlane, text: str) -> dict[str, Any]:
    return await describe_artifact(plane, await find_artifact(plane, text))


async def _replicas(plane: DataPlane, *, repair: bool) -> Replicas:
    if not repair:
        return await read_replicas(plane)
    repairer = ReplicationRepairDaemon(plane=plane, runtime=plane.runtime)
    await repairer.repair_once()
    return replace(await read_replicas(plane), failures=repairer.failures)


async def _verified(
    plane: DataPlane, progress: Any, texts: tuple[str, ...], older_than_days: float
) -> tuple[Scrubbed, Orphans]:
    orphans = Orphans() if texts else await register_orphans(plane, young_s=0.0)
    wanted = frozenset([(await find_artifact(plane, text)).digest for text in texts]) if texts else None
    own = (await plane.view()).receipts_at(plane.this.name).values()
    due = [each for each in own if wanted is None or each.digest in wanted]
    task = progress.add_task("reading", total=sum(each.size for each in due), files=f"of {len(due)} files")
    found = await scrub(
        plane,
        older_than_s=older_than_days * 86_400.0,
        bytes_max=UNLIMITED,
        digests=wanted,
        on_read=lambda receipt: progress.advance(task, receipt.size),
    )
    if texts:
        return found, orphans
    rest = await read_unregistered(plane)
    return (
        Scrubbed(
            verified=found.verified + rest.verified,
            bytes=found.bytes + rest.bytes,
            damaged=(*found.damaged, *rest.damaged),
            missing=found.missing,
        ),
        orphans,
    )


def _plain(found: Scrubbed) -> dict[str, Any]:
    return {
        "verified": found.verified,
        "bytes": found.bytes,
        "damaged": list(found.damaged),
        "missing": list(found.missing),
    }
