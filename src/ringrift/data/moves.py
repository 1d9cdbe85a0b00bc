"""Copying artifacts from one node to another, wherever this process runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from ringrift.data.artifacts import Artifact
from ringrift.data.plane import DataPlane
from ringrift.data.transfer.contract import Moved, Terms, TransferFailed, TransferProgress

OnProgress = Callable[[TransferProgress], Awaitable[None]]


async def copy_artifacts(
    plane: DataPlane,
    artifacts: Sequence[Artifact],
    *,
    source: str,
    target: str,
    priority: str = "normal",
    timeout_s: float = 300.0,
    on_progress: OnProgress | None = None,
) -> Moved:
    """Bring *artifacts* from *source* to *target*; what failed is named in the result.

    Nodes talk to this one only, so between two others the files pass through here and stay as copies.
    `TransferFailed` if a node cannot be reached, or the whole takes longer than *timeout_s*.
    """
    terms = Terms(timeout_s=timeout_s)
    if on_progress is not None:
        terms = replace(terms, on_progress=on_progress)
    this, transfers = plane.this.name, plane.transfers
    try:
        async with asyncio.timeout(timeout_s):
            if source == this:
                return await transfers.send(plane.nodes[target], artifacts, priority=priority, terms=terms)
            fetched = await transfers.fetch(plane.nodes[source], artifacts, priority=priority, terms=terms)
            if target == this:
                return fetched
            here = {receipt.digest for receipt in (*fetched.receipts, *fetched.already_there)}
            sent = await transfers.send(
                plane.nodes[target],
                [artifact for artifact in artifacts if artifact.digest in here],
                priority=priority,
                terms=terms,
            )
    except TimeoutError:
        raise TransferFailed(f"{source} to {target} took more than {timeout_s:g} s") from None
    return Moved(
        receipts=sent.receipts,
        already_there=sent.already_there,
        failed=fetched.failed + sent.failed,
        bytes_sent=fetched.bytes_sent + sent.bytes_sent,
    )


def arrived(moved: Moved) -> set[str]:
    """What the receiver has verified, now or before."""
    return {receipt.digest for receipt in (*moved.receipts, *moved.already_there)}
