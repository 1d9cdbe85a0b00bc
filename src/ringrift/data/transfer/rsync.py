"""rsync over ssh: into a folder of unfinished files, where the receiver verifies and seals them.

rsync goes on with what a broken transfer left, comparing it block by block. What it says of its success is
not believed: a file arrived when the receiver has read it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from pathlib import Path

import structlog

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.receive_main import BLOBS, ReceiveRequest
from ringrift.data.transfer.calls import READ_BYTES_PER_S, TransferCall
from ringrift.data.transfer.card_box import packed_cards
from ringrift.data.transfer.contract import BYTES_PER_S_MIN, Moved, Terms, TransferFailed
from ringrift.data.transfer.landing import Landing, rsync_place
from ringrift.data.transfer.programs import ProgramEnd, ProgramMissing, Programs
from ringrift.data.transfer.ssh import BUFFERED_BYTES, SSH_FAILED, SshLine
from ringrift.data.transfer.ssh_store import SshStores, data_folder, has_ssh
from ringrift.errors import StorageFull

log = structlog.get_logger()

NAME = "rsync"
_KIB = 1024  # rsync counts its limit in these
_FULL = "No space left on device"
_PROGRESS = re.compile(rb"\s(\d+)\s+\d+%")
_LITERAL = re.compile(rb"Literal data: (\d+) bytes")
_MISSING_THERE = re.compile(r"rsync: (command )?not found|command not found: rsync|rsync: No such file")
_TAIL_BYTES = 4096


class RsyncTransport:
    """See `Transport`."""

    name = NAME

    def __init__(self, stores: SshStores, programs: Programs, landing: Landing) -> None:
        self._stores, self._programs, self._landing = stores, programs, landing

    def reaches(self, node: DataNode) -> bool:
        return has_ssh(node)

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        here = await asyncio.to_thread(self._here, call)
        line = await self._stores.ssh.line(node)
        quiet_s = terms.timeout_s
        look = await self._stores.look(line, call, by=NAME)
        call.found(look.receipts)
        call.lacks(call.open)
        for batch in call.batches():
            target = f"{data_folder(node)}/{BLOBS}/{rsync_place(self._stores.this)}/"
            paths = [str(here[card.digest]).lstrip("/") for card in batch]
            ends = ["/", f"{line.rsync_target}:{target}"]
            try:
                outcome = await self._copy(line, paths, ends, call)
                sizes = {card.digest: card.size for card in batch}
                seal = ReceiveRequest(sizes=sizes, cards=packed_cards(batch))
                reading_s = sum(card.size for card in batch) / READ_BYTES_PER_S
                asking = self._stores.ask(line, "seal", seal, by=NAME, quiet_s=quiet_s + reading_s)
                reply = await call.shown_while(asking)
            except TransferFailed as error:
                call.fail_rest(error)
                break
            call.arrived(reply.receipts)
            self._note_failures(call, reply.failed, reply.corrupted, outcome, node.name)
            await call.show()
        return call.moved()

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        call = TransferCall(artifacts, terms)
        held = await asyncio.to_thread(self._landing.look, call.sizes(), read_again=terms.read_again)
        call.found(held.receipts)
        if not call.open:
            return call.moved()
        line = await self._stores.ssh.line(node)
        folder = await asyncio.to_thread(self._landing.rsync_folder, node.name)
        for batch in call.batches():
            paths = [f"{card.digest[:2]}/{card.digest}" for card in batch]
            ends = [f"{line.rsync_target}:{data_folder(node)}/{BLOBS}/", f"{folder}/"]
            try:
                outcome = await self._copy(line, paths, ends, call)
            except TransferFailed as error:
                call.fail_rest(error)
                break
            sizes = {card.digest: card.size for card in batch}
            landed = await call.shown_while(asyncio.to_thread(self._landing.seal, folder, sizes))
            call.arrived(landed.receipts)
            self._note_failures(call, landed.failed, landed.corrupted, outcome, node.name)
            await call.show()
        return call.moved()

    async def _copy(
        self, line: SshLine, paths: Sequence[str], ends: Sequence[str], call: TransferCall
    ) -> ProgramEnd:
        """Run rsync for these files. A line that broke shows in the outcome; some may have arrived."""
        meter = _Meter(call)
        names = b"".join(path.encode() + b"\0" for path in paths)
        async with self._programs.scratch.file(names) as listed:
            argv = [*_command(line, call.terms, listed), "--", *ends]
            # ssh takes megabytes off its hands and brings them in its own time; it notices itself when the
            # line is dead.
            running = self._programs.run(argv, quiet_s=_quiet_s(call.terms), hear=meter.hear)
            outcome = await call.shown_while(running, in_transit=True)
        call.bytes_sent += meter.bytes_sent
        if outcome.code:
            log.warning("rsync.failed", node=line.node.name, code=outcome.code, error=outcome.complaint)
        if outcome.code and _MISSING_THERE.search(outcome.complaint):
            raise ProgramMissing(NAME, where=line.node.name)
        if outcome.code == SSH_FAILED:
            self._stores.ssh.forget(line)
            raise TransferFailed(f"rsync to {line.node.name} cannot connect: {outcome.complaint}")
        return outcome

    def _here(self, call: TransferCall) -> dict[str, Path]:
        """Where the files are; those that are not here are closed."""
        folder = self._landing.intake.folder
        paths = {digest: folder.place(digest).resolve() for digest in call.open}
        missing = [digest for digest, path in paths.items() if not path.is_file()]
        call.fail(dict.fromkeys(missing, "this node does not have it"))
        return paths

    def _note_failures(
        self,
        call: TransferCall,
        failed: dict[str, str],
        corrupted: set[str] | frozenset[str],
        outcome: ProgramEnd,
        node: str,
    ) -> None:
        if _FULL in outcome.complaint and failed:
            why = f"no space left ({node}, rsync: {outcome.complaint})"
            if not call.moved().receipts:
                raise StorageFull(why, retry_after_s=60.0)
            failed = dict.fromkeys(failed, why)
        elif outcome.code:
            failed = {digest: f"{why} (rsync: {outcome.complaint})" for digest, why in failed.items()}
        call.fail(failed, corrupted=corrupted)


class _Meter:
    """Reads rsync's progress: how many bytes are done, and at the end how many of them went."""

    def __init__(self, call: TransferCall) -> None:
        self._call, self._tail, self._done = call, b"", 0
        self._literal: int | None = None

    @property
    def bytes_sent(self) -> int:
        return self._done if self._literal is None else self._literal

    async def hear(self, piece: bytes) -> None:
        self._tail = (self._tail + piece)[-_TAIL_BYTES:]
        if literal := _LITERAL.search(self._tail):
            self._literal = int(literal.group(1))
        found = _PROGRESS.findall(self._tail)
        if found and (done := int(found[-1])) > self._done:
            self._done = done
            await self._call.show(in_flight=done)


def _quiet_s(terms: Terms) -> float:
    return terms.timeout_s + BUFFERED_BYTES / BYTES_PER_S_MIN


def _command(line: SshLine, terms: Terms, listed: Path) -> list[str]:
    rate = terms.pace.bytes_per_s
    limit = () if rate is None else (f"--bwlimit={max(1, int(rate / _KIB))}",)
    return [
        "rsync",
        "-s",  # the shell there does not read the paths
        "--inplace",
        "--ignore-times",
        "--from0",
        f"--files-from={listed}",
        "--no-relative",
        "--info=progress2",
        "--stats",
        "--no-human-readable",
        "--outbuf=N",
        f"--timeout={max(1, round(_quiet_s(terms)))}",
        *limit,
        "-e",
        line.remote_shell,
    ]
