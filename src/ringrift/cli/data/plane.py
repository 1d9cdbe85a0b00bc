"""The data plane of the data folder that a command works on: reaching it, what is shown of it, and bars
while much is read or moved.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack

import click
import msgspec
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ringrift.cli.data_folder import opened_engine
from ringrift.cli.format import NOTHING, brief, clock, count
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.sync_base import close_data_plane, open_data_plane
from ringrift.data.artifacts import Artifact, kinds_of
from ringrift.data.config import DataNode
from ringrift.data.manifest.catalog import Cataloger, take_over_arrivals
from ringrift.data.manifest.store import CopyView
from ringrift.data.plane import DataPlane, Transfers
from ringrift.data.protection.deletion import Deleter, verdict_on
from ringrift.data.protection.inventory import look_everywhere
from ringrift.data.protection.records import DeletionRecords, Quarantine
from ringrift.data.protection.replication import RepairPlan, ReplicationRules, plan, take_snapshot
from ringrift.data.protection.retention import read_held
from ringrift.data.transfer.contract import Moved, MoveOptions, Terms, TransferProgress
from ringrift.engine.encoding import is_digest
from ringrift.errors import ConfigError

# Bars with rate and time left, for commands that read or move much. They go to stderr, to people only.


@contextmanager
def bars(*, quiet: bool = False) -> Iterator[Progress]:
    """Show bars while the block runs; nothing where nobody looks."""
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[files]}"),
        console=console,
        disable=quiet or not console.is_terminal,
        transient=True,
    ) as progress:
        yield progress


class WatchedTransfers:
    """The same transfers, each call with a bar of its own."""

    def __init__(self, transfers: Transfers, progress: Progress) -> None:
        self._transfers, self._progress = transfers, progress

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], **how: Unpack[MoveOptions]) -> Moved:
        with self._bar(f"to {node.name}", artifacts, how) as watched:
            return await self._transfers.send(node, artifacts, **watched)

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], **how: Unpack[MoveOptions]) -> Moved:
        with self._bar(f"from {node.name}", artifacts, how) as watched:
            return await self._transfers.fetch(node, artifacts, **watched)

    async def close(self) -> None:
        await self._transfers.close()

    @contextmanager
    def _bar(self, title: str, artifacts: Sequence[Artifact], how: MoveOptions) -> Iterator[MoveOptions]:
        plain = how.get("terms", Terms())
        total = sum(artifact.size for artifact in artifacts)
        task = self._progress.add_task(title, total=total, files=f"0 of {len(artifacts)} files")

        async def on_progress(report: TransferProgress) -> None:
            self._show(task, report)
            await plain.on_progress(report)

        yield {**how, "terms": replace(plain, on_progress=on_progress)}

    def _show(self, task: TaskID, report: TransferProgress) -> None:
        self._progress.update(
            task,
            completed=report.bytes_done,
            total=report.bytes_total,
            files=f"{report.files_done} of {report.files_total} files",
        )


# The data plane of the data folder that a command works on.


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
                await Cataloger(plane).catalog()
                await take_over_arrivals(plane)
                return await question(plane)
            finally:
                await close_data_plane()

    return asyncio.run(ask())


def _say_if_unnamed(plane: DataPlane) -> None:
    """A machine under a name of its own has none of its node's files, which looks as if all were well."""
    others = [node.name for node in plane.nodes.others() if not node.is_archive]
    if others and plane.this.name not in (plane.settings.nodes or {}):
        text = f"this machine goes by {plane.this.name!r}, which is no node of the config file"
        click.echo(f"note: {text}; RINGRIFT_NODE_ID says which it is: {', '.join(others)}", err=True)


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
        message = "no artifact is" if not found else f"{len(found)} artifacts are"
        raise ConfigError(f"{message} called {text!r}; `ringrift data ls` lists them")
    return found[0]


# What the data commands show, read off the manifest.


LS_COLUMNS = ("digest", "kind", "config", "size", "games", "made", "copies")
LS_WIDE_COLUMNS = (*LS_COLUMNS, "name")
WIDE = 120  # characters of a terminal that has room for names too
COPY_COLUMNS = ("node", "verified", "by", "counts")
DECISIONS_SHOWN = 20
_YEAR, _SECONDS = len("YYYY-"), len("YYYY-MM-DD hh:mm")


def size_text(size: float) -> str:
    """12 B, 3.4 MiB, 1.2 GiB."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units[:-1]:
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} {units[-1]}"


def files_text(number: int) -> str:
    return "1 file" if number == 1 else f"{count(number)} files"


async def artifact_rows(plane: DataPlane, *, data_type: str, config: str, node: str) -> list[dict[str, Any]]:
    """Artifacts, the oldest first."""
    if node:
        node = plane.nodes[node].name  # says which there are
    manifest = await plane.view()
    receipts = manifest.receipts
    stones = await plane.tombstones()
    marked = await Quarantine(plane).marked()
    view, rows = CopyView(nodes=plane.nodes, now_s=plane.runtime.now_s()), []
    for artifact in manifest.cards:
        copies = view.of(receipts.get(artifact.digest, ()), stones.get(artifact.digest))
        nodes = [*copies.nodes, *(receipt.node for receipt, _ in copies.discounted)]
        if artifact.kind not in kinds_of(data_type) or config not in ("", artifact.config):
            continue
        if node and node not in nodes:
            continue
        found = {"copies": len(copies.counted), "nodes": nodes, "quarantined": artifact.digest in marked}
        rows.append({**_described(artifact), **found})
    return sorted(rows, key=lambda row: (row["created_s"], row["digest"]))


def shown_row(row: dict[str, Any]) -> Sequence[str]:
    return (
        brief(row["digest"]),
        row["kind"] + (" (quarantined)" if row["quarantined"] else ""),
        row["config"] or NOTHING,
        size_text(row["size"]),
        count(row["games"]) if row["games"] else NOTHING,
        clock(row["created_s"], with_date=True)[_YEAR:_SECONDS] if row["created_s"] else NOTHING,
        f"{row['copies']} {', '.join(row['nodes'])}",
        row["name"] or NOTHING,
    )


async def describe_artifact(plane: DataPlane, artifact: Artifact) -> dict[str, Any]:
    """All that is known of one artifact."""
    digest, deleter, records = artifact.digest, Deleter(plane), DeletionRecords(plane.kv)
    tombstone, successor = await records.tombstone(digest), await records.successor(digest)
    view = await deleter.view()
    copies = view.of(await plane.manifest.copies(digest), tombstone)
    held = await read_held(plane, (await plane.view()).cards)
    verdict = await verdict_on(plane, digest, held_for=held.get(digest, ""))
    judged = [(receipt, "") for receipt in copies.counted] + list(copies.discounted)
    return {
        "artifact": _described(artifact),
        "copies": [
            {
                "node": receipt.node,
                "verified_s": receipt.verified_s,
                "verifier": receipt.verifier,
                "counts": not why,
                "why_not": why,
            }
            for receipt, why in judged
        ],
        "held_for": held.get(digest, ""),
        "may_delete": verdict.allowed,
        "why": verdict.reason,
        "tombstone": None if tombstone is None else msgspec.to_builtins(tombstone),
        "heir": None if successor is None else msgspec.to_builtins(successor),
        "decisions": [
            msgspec.to_builtins(each)
            for each in await deleter.decisions.recent(digest=digest, limit=DECISIONS_SHOWN)
        ],
    }


def copy_rows(copies: Sequence[dict[str, Any]]) -> list[Sequence[str]]:
    return [
        (
            each["node"],
            clock(each["verified_s"], with_date=True),
            each["verifier"] or NOTHING,
            "yes" if each["counts"] else f"no: {each['why_not']}",
        )
        for each in copies
    ]


@dataclass(frozen=True, slots=True)
class Replicas:
    """How copies stand."""

    plan: RepairPlan
    by_copies: dict[int, int]
    failures: dict[str, str] = field(default_factory=dict)  # of repairs just tried; digest: why
    unknown: dict[str, str] = field(default_factory=dict)  # nodes that did not answer, and why
    here: str = ""  # what is wrong with this node's own disk

    @property
    def verdict(self) -> str:
        """Nobody is healthy whose copies are not known."""
        healthy = self.plan.verdict == "healthy"
        return "not known" if healthy and (self.unknown or self.here) else self.plan.verdict

    @property
    def resting(self) -> int:
        """Too few copies, and neither to be repaired now nor stuck: they were tried not long ago."""
        planned = sum(each.priority != "low" for each in self.plan.repairs)
        return max(0, self.plan.under - planned - len(self.plan.stuck))

    def as_json(self) -> dict[str, Any]:
        found = self.plan
        return {
            "artifacts": found.total,
            "by_copies": {str(copies): number for copies, number in sorted(self.by_copies.items())},
            "without_copy": found.none,
            "single_copy": found.single,
            "under": found.under,
            "score": found.score,
            "verdict": self.verdict,
            "unknown": self.unknown,
            "here": self.here,
            "alerts": [{"level": each.level, "message": each.message} for each in found.alerts],
            "repairs": [
                {
                    "digest": each.artifact.digest,
                    "source": each.source,
                    "target": each.target,
                    "priority": each.priority,
                    "reason": each.reason,
                }
                for each in found.repairs
            ],
            "stuck": dict(found.stuck),
            "resting": self.resting,
            "failures": self.failures,
        }


async def read_replicas(plane: DataPlane) -> Replicas:
    """Look at this node's disk, ask the others, then count. No answer is no copy that counts."""
    seen = await look_everywhere(plane, (await plane.view()).cards)
    snapshot = await take_snapshot(plane, frozenset(seen.silent))
    counts = Counter(
        len(
            snapshot.view.of(
                snapshot.receipts.get(each.digest, ()), snapshot.tombstones.get(each.digest)
            ).counted
        )
        for each in snapshot.artifacts
        if each.digest not in snapshot.successors
    )
    found = plan(snapshot, ReplicationRules())
    return Replicas(found, dict(counts), unknown=dict(seen.silent), here=seen.here.message)


def _described(artifact: Artifact) -> dict[str, Any]:
    fields: dict[str, Any] = {name: getattr(artifact, name) for name in artifact.__struct_fields__}
    return {**fields, "kind": artifact.kind.value}
