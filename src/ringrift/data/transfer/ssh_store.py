"""Another node's store, asked over ssh by the receiver's command there."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ringrift.data.artifacts import Receipt
from ringrift.data.nodes import DataNode
from ringrift.data.receive_main import FULL, MODULE, REFUSED, ReceiveReply, ReceiveRequest
from ringrift.data.transfer.calls import READ_BYTES_PER_S, TransferCall
from ringrift.data.transfer.contract import TransferFailed
from ringrift.data.transfer.programs import ProgramEnd, Scratch
from ringrift.data.transfer.ssh import Ssh, SshLine
from ringrift.decoding import decode_as
from ringrift.errors import StorageFull

READ_AT_ONCE = 256 << 20  # that a receiver hashes for one answer
_HOME = "~/"


def has_ssh(node: DataNode) -> bool:
    """Whether the node's entry says how to get there by ssh and where its data are."""
    return bool(node.addresses and node.root_path)


def data_folder(node: DataNode) -> str:
    """The data folder there. Commands and rsync begin in the home folder, so that its sign can go."""
    return node.root_path.removeprefix(_HOME).rstrip("/") or "/"


class SshStores:
    """Asks the stores of other nodes. *this* is how they know us."""

    def __init__(self, ssh: Ssh, scratch: Scratch, *, this: str) -> None:
        self.ssh, self._scratch, self.this = ssh, scratch, this

    async def look(self, line: SshLine, call: TransferCall, *, by: str) -> ReceiveReply:
        """Ask what the node has of a call's files; it reads them for that if the call wants them read."""
        terms, receipts, offsets = call.terms, list[Receipt](), dict[str, int]()
        for sizes in _looked_at_together(call.sizes(), bytes_max=READ_AT_ONCE if terms.read_again else None):
            asked = ReceiveRequest(sizes=sizes, read_again=terms.read_again)
            reading_s = sum(sizes.values()) / READ_BYTES_PER_S if terms.read_again else 0.0
            found = await self.ask(line, "look", asked, by=by, quiet_s=terms.timeout_s + reading_s)
            receipts += found.receipts
            offsets |= found.offsets
        return ReceiveReply(receipts=tuple(receipts), offsets=offsets)

    async def ask(
        self, line: SshLine, action: str, request: ReceiveRequest, *, by: str, quiet_s: float
    ) -> ReceiveReply:
        """Raises `TransferFailed` if there is no answer, `StorageFull` if there is no room there."""
        node = line.node
        # Joined, so that no value is taken for an option.
        words = [node.python.removeprefix(_HOME), "-m", MODULE, action, f"--data-dir={data_folder(node)}"]
        words += [f"--node={node.name}", f"--peer={self.this}", f"--by={by}"]
        async with self._scratch.file(msgspec.json.encode(request)) as asked:
            outcome = await self.ssh.run(line, words, quiet_s=quiet_s, stdin=asked)
        return _answer(node, outcome)


def _looked_at_together(sizes: dict[str, int], *, bytes_max: int | None) -> Iterator[dict[str, int]]:
    some: dict[str, int] = {}
    for digest, size in sizes.items():
        if some and bytes_max is not None and sum(some.values()) + size > bytes_max:
            yield some
            some = {}
        some[digest] = size
    yield some


def _answer(node: DataNode, outcome: ProgramEnd) -> ReceiveReply:
    if outcome.code == FULL:
        raise StorageFull(f"{node.name}: {outcome.complaint}", retry_after_s=60.0)
    if outcome.code == REFUSED:
        raise TransferFailed(f"{node.name} refuses: {outcome.complaint}", retry_after_s=5.0)
    if outcome.code != 0:
        raise TransferFailed(
            f"the receiver on {node.name} ended with {outcome.code} ({outcome.complaint}); is ringrift "
            f"installed there for {node.python}?",
            retry_after_s=30.0,
        )
    try:
        return decode_as(outcome.output, ReceiveReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise TransferFailed(
            f"the answer of {node.name} cannot be read ({error})", retry_after_s=5.0
        ) from None
