"""What broke in practice, shown with real servers: blocked loops, overwritten files, leaks, restarts."""

import asyncio
import gc
import os
import random
import time

import pytest

from data_http import DataServerProcess, http_transport
from data_transports import HERE, THERE, Store
from ringrift.data.artifacts import Artifact, ArtifactKind
from ringrift.data.manifest.store import ManifestStore
from ringrift.data.transfer.contract import Terms, TransferFailed
from ringrift.engine.opening import open_engine
from ringrift.runtime import SystemRuntime, system_runtime
from ringrift.settings import load_settings


@pytest.fixture
def server(tmp_path):
    process = DataServerProcess(tmp_path / THERE).start()
    yield process
    process.stop()


@pytest.fixture
def here(tmp_path):
    return Store(tmp_path / HERE, SystemRuntime())


async def test_row_07_the_loop_does_none_of_the_work_of_a_large_transfer(server, here):
    """Hashing, reading and sending happen in other threads; counted in CPU time, whatever else runs."""
    card = here.put(random.Random(1).randbytes(128 << 20))
    transport = http_transport(here)
    whole_s, loop_s = time.process_time(), time.thread_time()
    moved = await transport.send(server.node(), [card], Terms())
    whole_s, loop_s = time.process_time() - whole_s, time.thread_time() - loop_s
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
    assert loop_s < 0.3 * whole_s


async def test_row_13_two_exporters_of_one_name_lose_nothing(tmp_path):
    """A file is named by what is in it: a smaller or later one of the same name replaces nothing."""
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "data")}).settings
    engines = [await open_engine(settings, system_runtime()) for _ in range(2)]
    contents = [random.Random(seed).randbytes(size) for seed, size in enumerate((200_000, 1_000, 90_000))]

    async def export(number, engine, content):
        path = tmp_path / str(number) / "square8_2p.npz"  # a folder each: none writes what another reads
        path.parent.mkdir()
        path.write_bytes(content)
        digest = await engine.blobs.put(path)
        card = Artifact(
            digest=digest,
            size=len(content),
            kind=ArtifactKind.SAMPLES,
            name="square8_2p.npz",
            config="square8_2p",
            created_s=1.0,
        )
        await ManifestStore(engine.kv).register([card])
        return card

    pairs = [(engine, content) for content in contents for engine in engines]
    cards = await asyncio.gather(*(export(number, *pair) for number, pair in enumerate(pairs)))
    known = await ManifestStore(engines[0].kv).artifacts()
    assert {card.digest: card.size for card in known} == {card.digest: card.size for card in cards}
    for card, (_, content) in zip(cards, pairs, strict=True):
        with await engines[1].blobs.open(card.digest) as file:
            assert file.read() == content
    other = Artifact(digest=cards[0].digest, size=1, name="a shorter story", created_s=2.0)
    assert await ManifestStore(engines[1].kv).register([other]) == 0  # the first card of a file stays
    assert (await ManifestStore(engines[0].kv).artifact(other.digest)).size == len(contents[0])
    for engine in engines:
        await engine.close()


async def test_row_25_many_transfers_leave_nothing_open_on_either_side(server, here):
    """Files, sockets and tasks after a hundred transfers are those after ten; failed ones included."""
    transport, gone = http_transport(here), server.node(data_port=1)

    async def rounds(first, last):
        for number in range(first, last):
            cards = [here.put(random.Random(number * 10 + part).randbytes(3_000)) for part in range(3)]
            await transport.send(server.node(), cards, Terms())
            await transport.fetch(server.node(), cards, Terms())
            with pytest.raises(TransferFailed):
                await transport.send(gone, cards, Terms(timeout_s=5.0))
        gc.collect()
        return _open(os.getpid()), _open(server.process.pid), len(asyncio.all_tasks())

    before = await rounds(0, 10)
    after = await rounds(10, 100)
    assert all(now <= then + 4 for now, then in zip(after, before, strict=True))


def _open(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


async def test_row_26_a_data_server_that_was_killed_starts_again_on_what_it_left(server, here):
    """Nothing that a dead process left keeps the next one from starting, and what it held goes on."""
    cards = [here.put(random.Random(number).randbytes(5 << 20)) for number in range(3)]
    transport = http_transport(here)
    await transport.send(server.node(), cards[:1], Terms())
    for _ in range(3):
        await asyncio.to_thread(server.kill)
        await asyncio.to_thread(server.start)
    moved = await transport.send(server.node(), cards, Terms())
    assert {receipt.digest for receipt in moved.already_there} == {cards[0].digest}
    assert {receipt.digest for receipt in moved.receipts} == {card.digest for card in cards[1:]}
