"""Copies as they are seen now: what the manifest says is compared with what nodes find when they look.

A copy that is gone, or damaged, is struck from the manifest; one that was read since gets a newer receipt.
"""

from __future__ import annotations

import structlog

from ringrift.data.artifacts import Receipt
from ringrift.data.decisions import DecisionLog
from ringrift.data.plane import DataPlane
from ringrift.data.promises import KeepAnswer

log = structlog.get_logger()

PART = "inventory"
_RENEWED_S = 1.0  # a receipt that is younger by less says the same


async def learn_from_answer(plane: DataPlane, answer: KeepAnswer, *, began_s: float) -> None:
    """Bring the manifest up to what *answer*, asked for at *began_s*, says of that node's files."""
    now_s = plane.runtime.now_s()
    for file in answer.files:
        if file.missing or file.damaged:
            # Another process may have brought it there since.
            if await plane.manifest.drop_copy_read_before(began_s, file.digest, answer.node):
                decisions = DecisionLog(plane.kv, plane.runtime, node=plane.this.name)
                await decisions.record(PART, "struck", f"{answer.node}: {file.refusal}", digest=file.digest)
                log.warning("inventory.copy_gone", node=answer.node, digest=file.digest, why=file.refusal)
        elif not file.refusal and file.read_age_s is not None:
            read_s = now_s - file.read_age_s
            known = [each for each in await plane.manifest.copies(file.digest) if each.node == answer.node]
            if not known or known[0].verified_s < read_s - _RENEWED_S:
                receipt = Receipt(
                    digest=file.digest, node=answer.node, size=file.size, verified_s=read_s, verifier=PART
                )
                await plane.manifest.add_receipts([receipt])
