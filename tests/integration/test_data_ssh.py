"""Lines over a real sshd: which address, whose key, how many connections, and what breaks them."""

import asyncio
import json
import os
import random
import subprocess
import sys

import msgspec
import pytest

from data_cluster import running_node
from data_transports import Store, ssh_bench
from ringrift.data.transfer.contract import CHUNK_BYTES, Terms, TransferFailed
from ringrift.data.transfer.ssh import OVERLAY_AGAIN_S, Programs, Scratch, Ssh, SshUnreachable
from ringrift.data.transfer.ssh_transports import PART_FIRST, _Course
from ringrift.errors import ConfigError, StorageFull
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import simulate

NOBODY = "127.0.0.2"  # loopback, where the server does not listen


class LaterRuntime(SystemRuntime):
    """The real world, some time later."""

    ahead_s = 0.0

    def monotonic_s(self):
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
async def lines(tmp_path, tmp_path_factory):
    runtime = LaterRuntime()
    programs = Programs(Scratch(tmp_path / "scratch", runtime), runtime)
    ssh = Ssh(programs, runtime, control_dir=tmp_path_factory.mktemp("c"), connect_s=60.0)
    ssh.runtime = runtime
    yield ssh
    await ssh.close()


@pytest.fixture(params=["rsync", "base64"])
async def bench(request, ssh_server, tmp_path, tmp_path_factory):
    made = ssh_bench(request.param, ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    yield made
    await made.close()


def logins(server):
    return (server.folder / "sshd.log").read_text().count("Accepted publickey")


async def test_the_overlay_address_is_tried_first(lines, ssh_server, tmp_path):
    node = ssh_server.node("gpu", tmp_path, overlay_ip="127.0.0.1", ssh_host=NOBODY)
    assert (await lines.line(node)).address == "127.0.0.1"


async def test_without_its_overlay_a_node_is_reached_directly_and_the_overlay_tried_again_later(
    lines, ssh_server, tmp_path
):
    node = ssh_server.node("gpu", tmp_path, overlay_ip=NOBODY, ssh_host="127.0.0.1")
    line = await lines.line(node)
    assert line.address == "127.0.0.1"
    assert await lines.line(node) is line
    lines.runtime.ahead_s = OVERLAY_AGAIN_S + 1
    assert await lines.line(node) is not line  # it asked the overlay once more


async def test_both_addresses_are_named_when_neither_answers(lines, ssh_server, tmp_path):
    node = ssh_server.node("gpu", tmp_path, overlay_ip=NOBODY, ssh_host="127.0.0.3")
    with pytest.raises(SshUnreachable) as told:
        await lines.line(node)
    assert [address for address, _ in told.value.attempts] == [NOBODY, "127.0.0.3"]


async def test_a_host_whose_key_is_not_known_is_refused(lines, ssh_server, tmp_path):
    (tmp_path / "known").write_text("")
    node = ssh_server.node("gpu", tmp_path, ssh_known_hosts=str(tmp_path / "known"))
    with pytest.raises(SshUnreachable, match="Host key verification failed"):
        await lines.line(node)
    assert (tmp_path / "known").read_text() == ""


async def test_a_host_with_another_key_is_refused(lines, ssh_server, own_ssh_server, tmp_path):
    other = own_ssh_server.known_hosts.read_text().split(" ", 1)[1]
    (tmp_path / "known").write_text(f"[127.0.0.1]:{ssh_server.port} {other}")
    node = ssh_server.node("gpu", tmp_path, ssh_known_hosts=str(tmp_path / "known"))
    with pytest.raises(SshUnreachable, match="Host key verification failed"):
        await lines.line(node)


async def test_a_node_without_an_address_is_a_mistake_in_the_config(lines, ssh_server, tmp_path):
    with pytest.raises(ConfigError, match="neither ssh_host nor overlay_ip"):
        await lines.line(ssh_server.node("gpu", tmp_path, ssh_host=""))


async def test_many_calls_share_one_connection(own_ssh_server, tmp_path, tmp_path_factory):
    bench = ssh_bench("rsync", own_ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    for number in range(2):
        moved = await bench.transport.send(bench.node, [bench.here.put(b"%d" % number)], Terms())
        assert len(moved.receipts) == 1
    assert logins(own_ssh_server) == 1
    await bench.close()


async def test_a_folder_too_deep_for_sockets_costs_connections_not_transfers(own_ssh_server, tmp_path):
    bench = ssh_bench("rsync", own_ssh_server, tmp_path, tmp_path / ("deep" * 30))
    moved = await bench.transport.send(bench.node, [bench.here.put(b"x")], Terms())
    assert len(moved.receipts) == 1
    assert logins(own_ssh_server) > 1
    await bench.close()


async def test_a_server_that_restarts_is_found_again(own_ssh_server, tmp_path, tmp_path_factory):
    bench = ssh_bench("rsync", own_ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    await bench.transport.send(bench.node, [bench.here.put(b"before")], Terms())
    own_ssh_server.stop()
    with pytest.raises(TransferFailed):
        await bench.transport.send(bench.node, [bench.here.put(b"while")], Terms(timeout_s=60.0))
    own_ssh_server.start()
    moved = await bench.transport.send(bench.node, [bench.here.put(b"after")], Terms())
    assert len(moved.receipts) == 1
    await bench.close()


@pytest.mark.parametrize("name", ["rsync", "base64"])
async def test_folders_may_have_any_name_and_hosts_may_be_ipv6(name, ssh_server, tmp_path, tmp_path_factory):
    root = tmp_path / 'it\'s a $HOME; with "spaces"'
    bench = ssh_bench(
        name, ssh_server, tmp_path, tmp_path_factory.mktemp("c"), root_path=str(root), ssh_host="::1"
    )
    card = bench.here.put(b"there")
    assert (await bench.transport.send(bench.node, [card], Terms())).failed == ()
    assert (root / "blobs" / card.digest[:2] / card.digest).read_bytes() == b"there"
    bench.here.folder.place(card.digest).unlink()
    moved = await bench.transport.fetch(bench.node, [card], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
    await bench.close()


async def test_a_node_without_ringrift_is_told_what_it_lacks(bench, tmp_path):
    bare = with_python(bench.node, "/bin/false")
    with pytest.raises(TransferFailed, match="is ringrift installed there"):
        await bench.transport.send(bare, [bench.here.put(b"x")], Terms())


async def test_row_27_a_file_that_does_not_fit_is_refused_before_its_first_byte(bench):
    small = bench.here.put(b"x")
    huge = type(small)(digest="0" * 64, size=1 << 60)
    bench.here.put(b"short", digest=huge.digest)
    with pytest.raises(StorageFull):
        await bench.transport.send(bench.node, [huge], Terms())
    assert bench.there.read(huge) is None


async def test_row_27_a_disk_that_fills_up_keeps_what_came_and_goes_on_with_room(
    ssh_server, tmp_path, tmp_path_factory
):
    """A limit on the size of files stands for the full disk: the kernel refuses the write."""
    bench = ssh_bench("base64", ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    cramped = tmp_path / "cramped-python"
    cramped.write_text(f'#!/bin/bash\nulimit -f 3000\nexec {bench.node.python} "$@"\n')
    cramped.chmod(0o755)
    content = random.Random(27).randbytes(2 * CHUNK_BYTES)
    card = bench.here.put(content)
    full = with_python(bench.node, str(cramped))
    with pytest.raises(StorageFull):
        await bench.transport.send(full, [card], Terms())
    assert bench.there.read(card) is None
    moved = await bench.transport.send(bench.node, [card], Terms())
    assert bench.there.read(card) == content
    assert moved.bytes_sent < len(content) * 4 / 3
    await bench.close()


async def test_row_09_what_broken_transfers_left_is_never_published_as_it_is(bench):
    """Break it again and again, and damage what it left: truncated, longer, with wrong bits."""
    rng = random.Random(9)
    content = rng.randbytes(3 * CHUNK_BYTES)
    card = bench.here.put(content)
    for damage in ("truncate", "extend", "flip"):
        await break_off(bench, card)
        assert bench.there.read(card) is None
        for left in unfinished(bench, card):
            harm(left, damage, rng)
    moved = await bench.transport.send(bench.node, [card], Terms())
    if moved.failed:  # it found the damage only when it read the whole, and began anew
        moved = await bench.transport.send(bench.node, [card], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
    assert bench.there.read(card) == content
    assert unfinished(bench, card) == []


async def test_row_15_a_command_never_carries_more_than_a_chunk(ssh_server, tmp_path, tmp_path_factory):
    bench = ssh_bench("base64", ssh_server, tmp_path, tmp_path_factory.mktemp("c"))
    spent = []

    class Ledger:
        bytes_per_s = None

        async def spend(self, count):
            spent.append(count)

    cards = [bench.here.put(random.Random(n).randbytes(n)) for n in (100, 2 * CHUNK_BYTES, 50_000)]
    await bench.transport.send(bench.node, cards, Terms(pace=Ledger()))
    as_text = 4 / 3
    most = PART_FIRST
    for count in spent:  # how fast they grow depends on the line, and here on the machine: see below
        assert count <= (most + 2) * as_text + 4 * len(cards)
        most = min(CHUNK_BYTES, most * 4)
    assert sum(spent) >= sum(card.size for card in cards) * as_text
    await bench.close()


# Parts of 2 MB from the first one on would be 3 commands, and the first would take 160 s at 100 kbit/s.
@pytest.mark.parametrize(("bytes_per_s", "commands"), [(1e9, 5), (1e6, 5), (12_500, 68)])
def test_a_command_carries_as_much_as_the_line_brings_in_five_seconds(bytes_per_s, commands):
    async def scenario():
        course, left, parts = _Course({}), 2 * CHUNK_BYTES + 50_100, []
        while left:
            part = min(course.part_bytes, left)
            with course.timed(part):
                await asyncio.sleep(part / bytes_per_s)
            parts.append(part)
            left -= part
        return parts

    parts = simulate(scenario())
    assert len(parts) == commands
    assert max(parts[1:]) <= min(CHUNK_BYTES, 5.001 * bytes_per_s)


async def break_off(bench, card):
    """Cancel a transfer as soon as more of it is there, and before it ends."""
    under_way = asyncio.Event()

    class OnePart:
        bytes_per_s = CHUNK_BYTES / 2  # rsync alone: the rest of the file would take it seconds
        parts = 0

        async def spend(self, count):
            self.parts += 1
            if self.parts > 1:
                await asyncio.Event().wait()

    async def watch(progress):
        if progress.bytes_done:
            under_way.set()

    sending = asyncio.ensure_future(
        bench.transport.send(bench.node, [card], Terms(pace=OnePart(), on_progress=watch))
    )
    await asyncio.wait_for(under_way.wait(), 120)
    sending.cancel()
    await asyncio.wait({sending})


def unfinished(bench, card):
    return [path for path in bench.there.folder.incoming.rglob(card.digest) if path.is_file()]


def harm(path, damage, rng):
    content = bytearray(path.read_bytes())
    if damage == "truncate":
        del content[len(content) // 2 :]
    elif damage == "extend":
        content += rng.randbytes(1000)
    elif content:
        content[rng.randrange(len(content))] ^= 1
    path.write_bytes(content)


def with_python(node, program):
    return msgspec.structs.replace(node, python=program)


def sockets(folder):
    return [each for each in folder.iterdir() if each.is_socket()]


async def test_a_connection_ends_with_the_one_who_made_it_and_not_before_commands_of_others_on_it(
    ssh_server, tmp_path, tmp_path_factory
):
    runtime, folder = SystemRuntime(), tmp_path_factory.mktemp("c")
    programs = Programs(Scratch(tmp_path / "scratch", runtime), runtime)
    maker, guest = (
        Ssh(programs, runtime, control_dir=folder, connect_s=60.0, close_s=60.0) for _ in range(2)
    )
    node = ssh_server.node("gpu", tmp_path)
    await maker.line(node)
    line = await guest.line(node)
    await guest.close()
    assert len(sockets(folder)) == 1, "it is not the guest's to end"
    os.mkfifo(tmp_path / "pipe")
    reading = asyncio.create_task(guest.run(line, ["cat", str(tmp_path / "pipe")], quiet_s=60.0))
    with await asyncio.to_thread((tmp_path / "pipe").open, "w") as pipe:  # open when the command reads
        await maker.close()
        assert sockets(folder) == []
        pipe.write("all of it")
    end = await reading
    assert (end.code, end.output) == (0, b"all of it")
    await guest.line(node)
    assert len(sockets(folder)) == 1, "the guest makes one of its own when the maker has left"
    await guest.close()
    assert sockets(folder) == []


async def test_a_connection_that_does_not_answer_holds_up_nobody(ssh_server, tmp_path, tmp_path_factory):
    class Deaf(Programs):
        async def run(self, argv, **given):
            if "stop" in argv:
                await asyncio.Event().wait()
            return await super().run(argv, **given)

    runtime, folder = SystemRuntime(), tmp_path_factory.mktemp("c")
    deaf = Deaf(Scratch(tmp_path / "scratch", runtime), runtime)
    ssh = Ssh(deaf, runtime, control_dir=folder, connect_s=60.0, close_s=0.01)
    await ssh.line(ssh_server.node("gpu", tmp_path))
    await ssh.close()
    hearing = Programs(deaf.scratch, runtime)
    (socket,) = sockets(folder)
    await hearing.run(["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "gpu"], quiet_s=60.0)


async def test_a_command_leaves_no_connection_behind(ssh_server, tmp_path, tmp_path_factory):
    here = tmp_path_factory.mktemp("h")
    node = msgspec.to_builtins(ssh_server.node("gpu", tmp_path / "gpu", training=True))
    environment = {
        **os.environ,
        "RINGRIFT_DATA_DIR": str(here),
        "RINGRIFT_NODE_ID": "here",
        "RINGRIFT_NODES": json.dumps({"gpu": {key: value for key, value in node.items() if key != "name"}}),
    }
    async with running_node("here", here) as made:
        card = await made.make(b"a game", games=10)
    syncing = [sys.executable, "-m", "ringrift.cli", "data", "sync", "gpu"]
    ended = await asyncio.to_thread(
        subprocess.run, syncing, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert Store(tmp_path / "gpu", SystemRuntime()).read(card) == b"a game"
    assert (here / "transfer" / "ssh").is_dir(), "it did connect"
    assert sockets(here / "transfer" / "ssh") == []
