"""The transfer service over a real data server, real sshd and real rsync, some of which are gone."""

import asyncio
import os
import random
from pathlib import Path
from unittest.mock import ANY

import pytest
import structlog

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from data_transports import Store
from held_port import HeldPort
from ringrift.data.transfer.contract import NodeUnreachable
from ringrift.data.transfer.http.wire import SECRET_FILE
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


def programs_without(folder, *names):
    """A PATH on which everything of the usual one is found, except *names*."""
    folder.mkdir()
    for place in os.environ["PATH"].split(":"):
        for program in Path(place).glob("*"):
            if program.name not in names and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


async def test_without_rsync_on_this_machine_base64_brings_the_files(tmp_path, ssh_server, monkeypatch):
    there = ssh_server.node("there", tmp_path / "there")
    store = Store(tmp_path / "there", SystemRuntime())
    monkeypatch.setenv("PATH", programs_without(tmp_path / "bin", "rsync"))
    async with running_node("here", tmp_path / "here", there) as here:
        cards = [await here.make(random.Random(3).randbytes(size)) for size in (100, 3 << 20)]
        with structlog.testing.capture_logs() as logs:
            for card in cards:
                assert (await here.plane.transfers.send("there", [card])).failed == ()
                here.plane.transfers.health.forgive("there")
        assert [store.read(card) for card in cards] == [await here.read(card) for card in cards]
        assert {each.method for each in await here.plane.transfers.ledger.deliveries()} == {"base64"}
        told = [each["error"] for each in logs if each["event"] == "transfer.attempt_failed"]
        assert len(told) == 1, "it is as missing as before"
        assert "rsync is not installed on this machine; install the package rsync there" in told[0]


async def test_without_rsync_on_the_other_machine_base64_brings_the_files(tmp_path, own_ssh_server):
    gate = tmp_path / "gate.sh"
    path = programs_without(tmp_path / "bin", "rsync")
    gate.write_text(f'#!/bin/sh\nPATH={path} exec sh -c "$SSH_ORIGINAL_COMMAND"\n')
    gate.chmod(0o755)
    own_ssh_server.gate = f"ForceCommand {gate}"
    own_ssh_server.stop()
    own_ssh_server.start()
    there = own_ssh_server.node("there", tmp_path / "there")
    async with running_node("here", tmp_path / "here", there) as here:
        card = await here.make(b"games" * 1000)
        with structlog.testing.capture_logs() as logs:
            assert (await here.plane.transfers.send("there", [card])).failed == ()
        assert Store(tmp_path / "there", SystemRuntime()).read(card) == b"games" * 1000
        told = [each["error"] for each in logs if each["event"] == "transfer.attempt_failed"]
        assert told == [ANY]
        assert "rsync is not installed on there; install the package rsync there" in told[0]


async def test_without_ssh_a_node_with_a_data_server_is_served(tmp_path, ssh_server, monkeypatch):
    server = DataServerProcess(tmp_path / "there")
    monkeypatch.setenv("PATH", programs_without(tmp_path / "bin", "ssh"))
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / SECRET_FILE).write_text(SECRET)
    await asyncio.to_thread(server.start)
    there = ssh_server.node("there", tmp_path / "there", data_port=server.port)
    try:
        async with running_node("here", tmp_path / "here", there) as here:
            card = await here.make(b"games")
            moved = await here.plane.transfers.send("there", [card], avoid=("http",))
            assert (len(moved.receipts), moved.failed) == (1, ())
            await asyncio.to_thread(server.kill)
            here.plane.transfers.health.forgive("there")
            with pytest.raises(NodeUnreachable, match="install the package openssh-client there"):
                await here.plane.transfers.send("there", [await here.make(b"more games")])
    finally:
        await asyncio.to_thread(server.stop)
