"""The transfer service over a real data server, real sshd and real rsync, some of which are gone."""

import asyncio
import random

import pytest

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from data_transports import Store
from held_port import HeldPort
from ringrift.data.secret import SECRET_FILE
from ringrift.data.transfer.refusals import NodeUnreachable
from ringrift.runtime import SystemRuntime


async def test_the_service_goes_from_a_dead_server_to_ssh_and_back(tmp_path, ssh_server):
    rng = random.Random(5)
    root = tmp_path / "there"
    held = HeldPort()
    server = DataServerProcess(root, port=held.number)
    there = ssh_server.node("there", root, data_port=server.port)
    store = Store(root, SystemRuntime())
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / SECRET_FILE).write_text(SECRET)
    async with running_node("here", tmp_path / "here", there) as here:
        transfers = here.plane.transfers
        cards = [await here.make(rng.randbytes(size)) for size in (100, 5_000, 3 << 20)]
        moved = await transfers.send("there", cards)
        assert {receipt.node for receipt in moved.receipts} == {"there"}
        assert len(moved.receipts) == 3
        assert {record.method for record in await transfers.ledger.deliveries()} == {"rsync"}
        for card in cards:
            assert store.read(card) == await here.read(card)
            assert await here.holders(card) == ["here", "there"]

        await asyncio.to_thread(server.start)
        try:
            transfers.health.forgive("there")
            again = [await here.make(rng.randbytes(size)) for size in (200, 4 << 20)]
            moved = await transfers.send("there", [*again, *cards])
            assert {receipt.digest for receipt in moved.receipts} == {card.digest for card in again}
            assert len(moved.already_there) == 3
            methods = {record.data_path: record.method for record in await transfers.ledger.deliveries()}
            assert {methods[card.digest] for card in again} == {"http"}
        finally:
            await asyncio.to_thread(server.stop)
            held.give_back()


async def test_a_node_that_is_gone_is_told_with_every_way_that_was_tried(tmp_path, ssh_server):
    nobody = HeldPort()  # refuses
    gone = ssh_server.node("gone", tmp_path / "gone", data_port=nobody.number, ssh_port=nobody.number)
    async with running_node("here", tmp_path / "here", gone) as here:
        card = await here.make(b"games")
        with pytest.raises(NodeUnreachable) as caught:
            await here.plane.transfers.send(gone, [card], timeout_s=120)
        assert [name for name, _ in caught.value.attempts] == ["http", "rsync", "base64"]
        assert await here.holders(card) == ["here"]
        (record,) = await here.plane.transfers.ledger.deliveries()
        assert record.next_retry_at is not None
    nobody.give_back()
