"""Files between nodes over HTTP, to and from the data server of the other node.

One round trip asks what is missing. Small files travel many in one request, large ones in hashed chunks over
several connections, so that hashing, sending and writing overlap. The bytes are signed for; they are
encrypted where the entry of the node names the fingerprint of its key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from ringrift.data.artifacts import Artifact
from ringrift.data.nodes import DataNode
from ringrift.data.transfer.contract import Moved, Terms, TransferFailed
from ringrift.data.transfer.http_crew import PAUSE_S, TRIES, Crew
from ringrift.data.transfer.http_fetching import Fetching
from ringrift.data.transfer.http_line import HttpLine, LineBroken, ServerTime, Unreachable, connect
from ringrift.data.transfer.http_pieces import LineSpeed
from ringrift.data.transfer.http_sending import Sending
from ringrift.data.transfer.http_tally import TransferTally
from ringrift.data.transfer.http_work import Work
from ringrift.data.transfer.messages import ASKED_AT_ONCE, File, Files, Hello
from ringrift.data.transfer.receiving import Intake, Taken
from ringrift.data.transfer.signing import NotSigned, Signer
from ringrift.runtime import Runtime

T = TypeVar("T")

CONNECTIONS = 3
READ_AT_ONCE = 256 << 20  # that a receiver hashes for one answer


class HttpTransport:
    """See `Transport`."""

    name = "http"

    def __init__(
        self, intake: Intake, *, secret: bytes, runtime: Runtime, connections: int = CONNECTIONS
    ) -> None:
        self._intake, self._signer, self._runtime = intake, Signer(secret), runtime
        self._connections = connections
        self._speeds: dict[str, LineSpeed] = {}  # by node

    def reaches(self, node: DataNode) -> bool:
        return node.data_port > 0 and bool(node.addresses)

    async def send(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        tally = TransferTally(artifacts, terms, self._runtime)
        await asyncio.to_thread(self._check_here, tally)
        open_line = self._opener(node, terms)
        await self._ask_what_is_held(tally, open_line, read_again=terms.read_again)
        return await self._work(Sending(self._intake, tally, terms, self._speed(node)), open_line)

    async def fetch(self, node: DataNode, artifacts: Sequence[Artifact], terms: Terms) -> Moved:
        tally = TransferTally(artifacts, terms, self._runtime)
        open_line = self._opener(node, terms)
        await asyncio.to_thread(self._check_held_here, tally, read_again=terms.read_again)
        if tally.open_files():
            await self._first_word(_hello, open_line)
        return await self._work(Fetching(self._intake, tally, terms, self._speed(node)), open_line)

    async def ask(
        self, node: DataNode, verb: str, message: msgspec.Struct, answer: type[T], *, timeout_s: float
    ) -> T:
        """Ask one thing that moves no file; `Unavailable` if there is no answer, or a refusal."""

        def say(line: HttpLine) -> T:
            return line.ask(verb, message, answer)

        return await self._first_word(say, self._opener(node, Terms(timeout_s=timeout_s)))

    async def _work(self, work: Work, open_line: Callable[[], HttpLine]) -> Moved:
        crew = Crew(
            open_line=open_line,
            act=work.act,
            give_up=work.give_up,
            runtime=self._runtime,
            size=self._connections,
            pieces=work.pieces,
        )
        try:
            await crew.work()
        finally:
            await asyncio.shield(asyncio.to_thread(work.close))
        await work.tally.tell()
        return work.tally.moved()

    def _speed(self, node: DataNode) -> LineSpeed:
        return self._speeds.setdefault(node.name, LineSpeed(self._runtime))

    def _opener(self, node: DataNode, terms: Terms) -> Callable[[], HttpLine]:
        if not self.reaches(node):
            raise TransferFailed(f"{node.name} has no data server in its entry", retry_after_s=300.0)
        server_time = ServerTime(self._runtime)

        def open_line() -> HttpLine:
            sock, host = connect(
                node.addresses, node.data_port, timeout_s=terms.timeout_s, pin=node.data_tls_sha256
            )
            return HttpLine(
                sock,
                host=host,
                signer=self._signer,
                node=self._intake.node,
                runtime=self._runtime,
                server_time=server_time,
            )

        return open_line

    # --- what is where --------------------------------------------------------------------------------

    def _check_here(self, tally: TransferTally) -> None:
        for artifact in tally.artifacts.values():
            if self._intake.held(artifact.digest, artifact.size) is None:
                tally.fail(artifact.digest, "it is not whole in this node's store")

    def _check_held_here(self, tally: TransferTally, *, read_again: bool) -> None:
        look = self._intake.read_again if read_again else self._intake.held
        held = (look(file.digest, file.size) for file in tally.artifacts.values())
        tally.already_there(receipt for receipt in held if receipt is not None)
        if missing := sum(artifact.size for artifact in tally.open_files()):
            self._intake.check_room(missing)

    async def _ask_what_is_held(
        self, tally: TransferTally, open_line: Callable[[], HttpLine], *, read_again: bool
    ) -> None:
        files = [File(artifact.digest, artifact.size) for artifact in tally.open_files()]
        for some in _asked_together(files, bytes_max=READ_AT_ONCE if read_again else None):
            asked = Files(some, read_again=read_again)
            taken = await self._first_word(partial(_held, asked), open_line)
            tally.already_there(taken.receipts)
            tally.lacks({file.digest for file in asked.files} - {each.digest for each in taken.receipts})
            await tally.tell()

    async def _first_word(self, say: Callable[[HttpLine], T], open_line: Callable[[], HttpLine]) -> T:
        """Ask over a connection of its own; `TransferFailed` if the node cannot be reached."""

        def once() -> T:
            line = open_line()
            try:
                return say(line)
            finally:
                line.close()

        for attempt in range(TRIES):
            try:
                return await asyncio.to_thread(once)
            except Unreachable as error:
                raise TransferFailed(error.what, retry_after_s=error.retry_after_s) from error
            except (LineBroken, NotSigned) as error:
                why = str(error)
                if attempt + 1 < TRIES:
                    await self._runtime.sleep(PAUSE_S * 2**attempt)
        raise TransferFailed(why, retry_after_s=5.0)


def _asked_together(files: Sequence[File], *, bytes_max: int | None) -> Iterator[tuple[File, ...]]:
    """Cut a list into questions, short where the files are read for the answer."""
    some: list[File] = []
    size = 0
    for file in files:
        if some and (len(some) == ASKED_AT_ONCE or (bytes_max is not None and size + file.size > bytes_max)):
            yield tuple(some)
            some, size = [], 0
        some.append(file)
        size += file.size
    if some:
        yield tuple(some)


def _held(asked: Files, line: HttpLine) -> Taken:
    return line.ask("held", asked, Taken)


def _hello(line: HttpLine) -> Hello:
    return line.ask("hello", Files(()), Hello)
