"""Another node's store, asked over ssh by the receiver's command there."""

from __future__ import annotations

import msgspec

from ringrift.data.nodes import DataNode
from ringrift.data.receive_main import FULL, MODULE, REFUSED, ReceiveReply, ReceiveRequest
from ringrift.data.transfer.contract import TransferFailed
from ringrift.data.transfer.programs import ProgramEnd, Scratch
from ringrift.data.transfer.ssh import Ssh, SshLine
from ringrift.errors import StorageFull

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

    async def ask(
        self, line: SshLine, action: str, request: ReceiveRequest, *, by: str, quiet_s: float
    ) -> ReceiveReply:
        """Raises `TransferFailed` if there is no answer, `StorageFull` if there is no room there."""
        node = line.node
        words = [node.python.removeprefix(_HOME), "-m", MODULE, action, "--data-dir", data_folder(node)]
        words += ["--node", node.name, "--peer", self.this, "--by", by]
        async with self._scratch.file(msgspec.json.encode(request)) as asked:
            outcome = await self.ssh.run(line, words, quiet_s=quiet_s, stdin=asked)
        return _answer(node, outcome)


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
        return msgspec.json.decode(outcome.output, type=ReceiveReply)
    except msgspec.MsgspecError as error:
        raise TransferFailed(
            f"the answer of {node.name} cannot be read ({error})", retry_after_s=5.0
        ) from None
