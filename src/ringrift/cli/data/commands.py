"""`ringrift data`: what exists, where verified copies are, and what a person may do about it."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from typing import Any

import click

from ringrift.cli.command import as_json, on_data_folder, plain_errors, print_json
from ringrift.cli.data.archives import backup, check, restore
from ringrift.cli.data.plane import (
    COPY_COLUMNS,
    LS_COLUMNS,
    LS_WIDE_COLUMNS,
    WIDE,
    Replicas,
    artifact_rows,
    ask_plane,
    copy_rows,
    describe_artifact,
    files_text,
    find_artifact,
    move_with_bars,
    read_replicas,
    shown_row,
    size_text,
)
from ringrift.cli.format import NOTHING, brief, clock, console, count, duration, print_table
from ringrift.cli.logs import log_to_stderr
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.coordination.sync_facade import SyncFacade
from ringrift.data.artifacts import DATA_TYPES, Artifact, ArtifactKind, kinds_of
from ringrift.data.manifest.store import DAY_S
from ringrift.data.plane import DataPlane
from ringrift.data.protection import retention
from ringrift.data.protection.deletion import Deleter, DeletionRules, DeletionVerdict
from ringrift.data.protection.integrity import Orphans, register_orphans
from ringrift.data.protection.inventory import Scrubbed, read_unregistered, scrub
from ringrift.data.protection.replication import ReplicationRepairDaemon
from ringrift.data.protection.retention import read_held
from ringrift.data.sync.requests import PRIORITIES, SyncBackend, SyncRequest, SyncResponse
from ringrift.runtime import system_runtime
from ringrift.tls import own_files

# `ringrift data sync`: bringing files to nodes, how far that is, and how long it will take.


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
    if details["not_known"]:
        out.print(f"not asked, so nothing is known of: {', '.join(details['not_known'])}", markup=False)
    for line in (*details["notes"], *_once_each(found)):
        out.print(line, markup=False)
    for node, digests in details["not_confirmed"].items():
        for digest in digests[:FAILED_SHOWN]:
            out.print(f"not confirmed by {node}: {digest}", markup=False)


def _once_each(found: SyncResponse) -> list[str]:
    """Errors without the name of the backend; each backend that was tried says the same of a node or file."""
    seen: dict[tuple[str, str], str] = {}
    for error in found.errors:
        first, _, rest = error.partition(": ")
        plain = rest if first in _BACKENDS else error
        node, _, why = plain.partition(": ")
        about, _, _ = why.partition(": ")
        file = about if _SHORT_DIGEST.fullmatch(about) else ""
        # the first words are those of the backend that was preferred
        seen.setdefault((node, file), why if why.startswith(f"{node} ") else plain)
    lines, left_out = list(seen.values())[:FAILED_SHOWN], len(seen) - FAILED_SHOWN
    return [*lines, f"and {count(left_out)} more"] if left_out > 0 else lines


# `ringrift data gc`: delete local copies that enough other nodes have verified, and nothing else.


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
    # Why files stay is told by reason, not by file: most stay for the same one.
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
        # What an earlier command was killed in the middle of comes first, or it would count as here still.
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
            # Somebody else deleted it between the look and the deed: nothing was freed by us.
            if verdict.allowed and not size and artifact.size:
                verdict = DeletionVerdict(allowed=False, reason="it was not here any more")
        about = {"digest": artifact.digest, "name": artifact.name, "size": size or artifact.size}
        rows.append({**about, "goes": verdict.allowed, "why": verdict.reason})
        progress.advance(task, artifact.size)
    return rows


# `ringrift data pin|unpin`: what a person wants kept, whatever copies there are.


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
        # All are looked up before the first is touched.
        found = [await find_artifact(plane, text) for text in texts]
        return [(artifact, await act(plane, artifact)) for artifact in found]

    with plain_errors():
        return ask_plane(work)


def _tell(done: list[tuple[Artifact, str]], changed: str, *, as_json: bool) -> None:
    if as_json:
        rows = [{"digest": artifact.digest, changed: said.startswith(changed)} for artifact, said in done]
        print_json(rows)
        return
    for artifact, said in done:
        console().print(f"{brief(artifact.digest)} {artifact.name}: {said}", markup=False)


EXIT_DAMAGED = 1
LISTED = 50  # the newest; a run has thousands of files
REPAIRS_SHOWN = 10
UNLIMITED = 1 << 62  # bytes; a person who asks for a check wants all of it

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
    # The wide columns begin with the narrow ones, so that a row is cut to fit.
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
    artifact = found["artifact"]
    out = console()
    out.print(f"{artifact['kind']} {artifact['name']} {artifact['digest']}", markup=False)
    about = f"{size_text(artifact['size'])}, {count(artifact['games'])} games, {count(artifact['rows'])} rows"
    out.print(
        f"{artifact['config'] or 'no config'}, {about}, made {clock(artifact['created_s'], with_date=True)}"
    )
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
    repairer = ReplicationRepairDaemon(plane=plane, router=get_router(), runtime=plane.runtime)
    await repairer.repair_once()
    # Looked at again, because a repair may have changed what is missing; the failures are known only here.
    return replace(await read_replicas(plane), failures=repairer.failures)


async def _verified(
    plane: DataPlane, progress: Any, texts: tuple[str, ...], older_than_days: float
) -> tuple[Scrubbed, Orphans]:
    # Files that no card speaks of are found by looking at the disk; whoever names files did not ask for
    # that.
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
    # What could not be registered has no receipt and was not in the scrub, but may still be damaged.
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
