"""Files arrive on a slow line, whatever way they go; a line that is dead is given up soon.

The real thing is 100 kbit/s against a limit of 60 s without progress, where a chunk of 2 MB takes three
minutes (`make slow-links`). Here everything is smaller by the same factor.
"""

import asyncio
import os
import time
from contextlib import asynccontextmanager

import pytest

from data_cluster import running_node
from data_http import SECRET, DataServerProcess
from data_servers import SlowLine
from data_transports import Store, ssh_bench
from ringrift.data.transfer.contract import Terms, TransferFailed
from ringrift.data.transfer.http.wire import SECRET_FILE
from ringrift.data.transfer.service import TransferConfig
from ringrift.runtime import SystemRuntime

REAL = "RINGRIFT_SLOW_LINKS_REAL" in os.environ  # 2 MB at 100 kbit/s, with the real limit
BYTES_PER_S = 12_500.0 if REAL else 16_000.0
SIZE = 2_000_000 if REAL else 130_000
STALL_S = 60.0 if REAL else 6.0


def known_host(ssh_server, port):
    key = ssh_server.known_hosts.read_text().split(maxsplit=1)[1]
    return f"[127.0.0.1]:{port} {key}"


@asynccontextmanager
async def nodes(tmp_path, line_port, *, ssh_server=None, **fields):
    """This node, and the other one at the end of a line."""
    root = tmp_path / "here"
    root.mkdir()
    (root / SECRET_FILE).write_text(SECRET)
    if ssh_server is not None:
        (tmp_path / "known").write_text(known_host(ssh_server, line_port))
        fields = {"ssh_port": line_port, "ssh_known_hosts": str(tmp_path / "known"), **fields}
        node = ssh_server.node("there", tmp_path / "there", **fields)
    else:
        node = fields["server"].node(data_port=line_port, ssh_port=1)
    async with running_node("here", root, node) as here:
        here.plane.transfers.config = TransferConfig(stall_s=STALL_S)
        yield here, Store(tmp_path / "there", SystemRuntime())


async def goes(here, there, *, avoid=()):
    """Send a file that is longer on its way than the limit without progress."""
    content, begun_s = os.urandom(SIZE), time.monotonic()
    card = await here.make(content)
    sent = await here.plane.transfers.send("there", [card], avoid=avoid)
    assert (len(sent.receipts), sent.failed) == (1, ())
    assert there.read(card) == content
    assert time.monotonic() - begun_s > STALL_S, "it was too fast to prove anything"


async def comes(here, there, *, avoid=()):
    content, begun_s = os.urandom(SIZE), time.monotonic()
    card = there.put(content)
    came = await here.plane.transfers.fetch("there", [card], avoid=avoid)
    assert (len(came.receipts), came.failed) == (1, ())
    assert await here.read(card) == content
    assert time.monotonic() - begun_s > STALL_S, "it was too fast to prove anything"


async def over_http(tmp_path, moves):
    tmp_path.mkdir()
    server = DataServerProcess(tmp_path / "there")
    await asyncio.to_thread(server.start)
    try:
        async with SlowLine(server.port, bytes_per_s=BYTES_PER_S) as line:
            line.pauses = [(SIZE // 4, STALL_S / 3), (SIZE // 2, STALL_S / 3)]
            async with nodes(tmp_path, line.port, server=server) as (here, there):
                await moves(here, there)
                assert line.pauses == []
    finally:
        await asyncio.to_thread(server.stop)


async def over_ssh(tmp_path, ssh_server, moves, *, avoid):
    async with (
        SlowLine(ssh_server.port, bytes_per_s=BYTES_PER_S, fast_bytes=20_000) as line,
        nodes(tmp_path, line.port, ssh_server=ssh_server) as (here, there),
    ):
        await moves(here, there, avoid=avoid)
        if moves is goes:
            ways = {each.method for each in await here.plane.transfers.ledger.deliveries()}
            assert ways == {"base64" if "rsync" in avoid else "rsync"}


@pytest.mark.timeout(3600)
async def test_files_arrive_on_a_slow_line_by_every_way(tmp_path, tmp_path_factory, ssh_server):
    folder = tmp_path_factory.mktemp  # with short names, in which there is room for the sockets of ssh
    async with asyncio.TaskGroup() as ways:
        for moves in (goes, comes):
            ways.create_task(over_http(tmp_path / f"http-{moves.__name__}", moves))
        ways.create_task(over_ssh(folder("r"), ssh_server, goes, avoid=("base64",)))
        ways.create_task(over_ssh(folder("b"), ssh_server, goes, avoid=("rsync",)))
        if REAL:
            ways.create_task(over_ssh(folder("s"), ssh_server, comes, avoid=("base64",)))
            ways.create_task(over_ssh(folder("c"), ssh_server, comes, avoid=("rsync",)))


@pytest.mark.parametrize("way", ["send", "fetch"])
async def test_what_came_of_a_chunk_before_the_line_died_need_not_come_again(tmp_path, way):
    """A chunk that takes longer than a call may still arrives, a call at a time."""
    size = 600_000
    server = DataServerProcess(tmp_path / "there")
    await asyncio.to_thread(server.start)
    try:
        async with (
            SlowLine(server.port, bytes_per_s=400_000.0) as line,
            nodes(tmp_path, line.port, server=server) as (here, there),
        ):
            transfers = here.plane.transfers
            transfers.config = TransferConfig(stall_s=1.5)
            content = os.urandom(size)
            card = await here.make(content) if way == "send" else there.put(content)
            move = transfers.send if way == "send" else transfers.fetch
            dying = asyncio.create_task(die_after(line, size // 2))
            begun_s = time.monotonic()
            assert [digest for digest, _ in (await move("there", [card])).failed] == [card.digest]
            await dying
            assert time.monotonic() - begun_s < 60, "a dead line was not given up"
            await line.break_off()
            kept = (there if way == "send" else Store(tmp_path / "here", SystemRuntime())).folder.incoming
            while not (kept / f"{card.digest}.begun").exists():
                await asyncio.sleep(0.01)
            await asyncio.to_thread(server.stop)  # and the node is started anew
            await asyncio.to_thread(server.start)
            line.stands_still, carried = False, line.carried
            transfers.health.forgive("there")
            transfers.config = TransferConfig()
            assert (await move("there", [card])).failed == ()
            assert (there.read(card) if way == "send" else await here.read(card)) == content
            assert line.carried - carried < 0.75 * size
    finally:
        await asyncio.to_thread(server.stop)


async def die_after(line, count):
    while line.carried < count:
        await asyncio.sleep(0.01)
    line.stands_still = True


@pytest.mark.parametrize("name", ["rsync", "base64"] if REAL else ["rsync"])
async def test_a_dead_line_is_given_up_by_ssh_itself(name, tmp_path, tmp_path_factory, ssh_server):
    async with SlowLine(ssh_server.port, bytes_per_s=100_000.0) as line:
        (tmp_path / "known").write_text(known_host(ssh_server, line.port))
        node = {"ssh_port": line.port, "ssh_known_hosts": str(tmp_path / "known")}
        limits = {"alive_s": 1, "connect_s": 5.0}
        bench = ssh_bench(name, ssh_server, tmp_path, tmp_path_factory.mktemp("c"), **limits, **node)
        dying = asyncio.create_task(die_after(line, 60_000))
        begun_s = time.monotonic()
        with pytest.raises(TransferFailed):
            await bench.transport.send(
                bench.node, [bench.here.put(os.urandom(500_000))], Terms(timeout_s=600)
            )
        assert time.monotonic() - begun_s < 120
        await dying
        await bench.close()
