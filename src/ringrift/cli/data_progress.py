"""Bars with rate and time left, for commands that read or move much. They go to stderr, to people only."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

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

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.plane import Transfers
from ringrift.data.transfer.contract import Moved, Terms, TransferProgress


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

    async def send(
        self,
        node: DataNode,
        artifacts: Sequence[Artifact],
        *,
        priority: str = "normal",
        terms: Terms | None = None,
        limit_bytes_per_s: float | None = None,
        avoid: Collection[str] = (),
    ) -> Moved:
        with self._bar(f"to {node.name}", artifacts, terms) as watched:
            return await self._transfers.send(
                node,
                artifacts,
                priority=priority,
                terms=watched,
                limit_bytes_per_s=limit_bytes_per_s,
                avoid=avoid,
            )

    async def fetch(
        self,
        node: DataNode,
        artifacts: Sequence[Artifact],
        *,
        priority: str = "normal",
        terms: Terms | None = None,
        limit_bytes_per_s: float | None = None,
        avoid: Collection[str] = (),
    ) -> Moved:
        with self._bar(f"from {node.name}", artifacts, terms) as watched:
            return await self._transfers.fetch(
                node,
                artifacts,
                priority=priority,
                terms=watched,
                limit_bytes_per_s=limit_bytes_per_s,
                avoid=avoid,
            )

    async def close(self) -> None:
        await self._transfers.close()

    @contextmanager
    def _bar(self, title: str, artifacts: Sequence[Artifact], terms: Terms | None) -> Iterator[Terms]:
        plain = terms or Terms()
        total = sum(artifact.size for artifact in artifacts)
        task = self._progress.add_task(title, total=total, files=f"0 of {len(artifacts)} files")

        async def on_progress(told: TransferProgress) -> None:
            self._show(task, told)
            await plain.on_progress(told)

        yield replace(plain, on_progress=on_progress)

    def _show(self, task: TaskID, told: TransferProgress) -> None:
        self._progress.update(
            task,
            completed=told.bytes_done,
            total=told.bytes_total,
            files=f"{told.files_done} of {told.files_total} files",
        )
