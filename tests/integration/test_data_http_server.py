"""The data server, a real process: who may speak, what is refused, and what a peer may not do."""

import asyncio
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import stat
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest

from data_http import SECRET, DataServerProcess, http_transport
from data_transports import HERE, THERE, Store, artifact
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.daemons.types import DaemonType
from ringrift.data.transfer.chunks import hash_of
from ringrift.data.transfer.contract import CHUNK_BYTES, Moved, Terms, TransferFailed
from ringrift.data.transfer.http.connection import HttpLine, LineBroken, ServerTime
from ringrift.data.transfer.http.server import ADDRESS_FILE, STRANGER_S, DataHttpServer, data_server
from ringrift.data.transfer.http.wire import (
    CHUNKS_AT_ONCE,
    SECRET_FILE,
    ChunkRange,
    Chunks,
    File,
    Files,
    Hello,
    NotSigned,
    OnceOnly,
    Positions,
    SignedText,
    Signer,
    data_secret,
    digest_of,
    encode,
)
from ringrift.errors import StorageFull, Unavailable
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.testing.simulation import ManualRuntime


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = DataServerProcess(tmp_path_factory.mktemp("server") / THERE).start()
    yield process
    process.stop()


@pytest.fixture
def own_server(tmp_path):
    """One that the test may end."""
    process = DataServerProcess(tmp_path / THERE).start()
    yield process
    process.stop()


@pytest.fixture
def here(tmp_path):
    return Store(tmp_path / HERE, SystemRuntime())


@pytest.fixture
def there(server):
    return Store(server.root, SystemRuntime())


@pytest.fixture
def line(server):
    opened = open_line(server)
    yield opened
    opened.close()


def open_line(server, *, secret=SECRET, runtime=None):
    runtime = runtime or SystemRuntime()
    return HttpLine(
        socket.create_connection(("127.0.0.1", server.port), timeout=30),
        host="127.0.0.1",
        signer=Signer(secret.encode()),
        node=HERE,
        runtime=runtime,
        server_time=ServerTime(runtime),
    )


class OtherClock(SystemRuntime):
    """A machine whose clock is wrong."""

    def __init__(self, *, wrong_by_s):
        super().__init__()
        self.wrong_by_s = wrong_by_s

    def now_s(self):
        return super().now_s() + self.wrong_by_s


def raw(server, words, *, secret=SECRET, body=None, **changes):
    """A request by hand; return status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    headers = Signer(secret.encode()).request_headers(words) | changes
    headers = {name: value for name, value in headers.items() if value is not None}
    connection.request("POST", words.path, body=words.head if body is None else body, headers=headers)
    answer = connection.getresponse()
    said = answer.read()
    connection.close()
    return answer.status, said


def words(verb="hello", head=b'{"files":[]}', *, time_s=None, nonce=None, path=None):
    return Said(
        method="POST",
        path=path or f"/v1/{verb}",
        node=HERE,
        time=f"{time.time() if time_s is None else time_s:.6f}",
        nonce=nonce or os.urandom(8).hex(),
        head_length=len(head),
        head_digest=digest_of(head),
        content_length=len(head),
        head=head,
    )


@dataclass(frozen=True, kw_only=True)
class Said(SignedText):
    """SignedText with the head that they are about."""

    head: bytes


# --- who may speak ----------------------------------------------------------------------------------------


def test_a_signed_request_is_answered_with_a_signed_answer(line):
    assert line.ask("hello", Files(()), Hello).node == THERE


def test_another_secret_is_refused_and_nothing_arrives(server, here, there):
    card = here.put(b"data")
    stranger = http_transport(here, secret="some other secret of 20")
    with pytest.raises(TransferFailed, match="same secret"):
        asyncio.run(stranger.send(server.node(), [card], Terms()))
    assert there.read(card) is None


@pytest.mark.parametrize("changed", ["path", "head", "node", "nonce", "time"])
def test_a_request_that_was_changed_on_its_way_is_refused(server, changed):
    said = words()
    if changed == "path":
        status = raw_with_path(server, said, "/v1/held")
    elif changed == "head":
        status = raw(server, said, body=b'{"files":[ }')[0]
    else:
        header = {"node": "Ringrift-Node", "nonce": "Ringrift-Nonce", "time": "Ringrift-Time"}[changed]
        value = {"node": "other", "nonce": "other", "time": f"{time.time() + 1:.6f}"}[changed]
        status = raw(server, said, **{header: value})[0]
    assert status == 401


def raw_with_path(server, said, path):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", path, body=said.head, headers=Signer(SECRET.encode()).request_headers(said))
    status = connection.getresponse().status
    connection.close()
    return status


def test_a_request_counts_once(server):
    said = words()
    assert raw(server, said)[0] == 200
    status, body = raw(server, said)
    assert status == 409
    assert b"replayed" in body


@pytest.mark.parametrize("off_s", [-3600, -301, 600, 3600, float("nan")])
def test_a_request_of_another_time_is_refused(server, off_s):
    status, body = raw(server, words(time_s=time.time() + off_s))
    assert status == 409
    assert b"stale" in body


def test_a_request_from_before_the_start_is_refused_so_that_a_restart_forgets_no_nonce(own_server):
    said = words()
    assert raw(own_server, said)[0] == 200
    own_server.kill()
    own_server.start()
    status, body = raw(own_server, said)
    assert status == 409
    assert b"stale" in body


@pytest.mark.parametrize("wrong_by_s", [-86_400, 86_400])
async def test_a_node_whose_clock_is_wrong_follows_the_server(server, here, there, wrong_by_s):
    card = here.put(b"data of a node that lives %d s away" % wrong_by_s)
    transport = http_transport(here, OtherClock(wrong_by_s=wrong_by_s))
    moved = await transport.send(server.node(), [card], Terms())
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]


async def test_a_clock_that_jumps_in_the_middle_does_not_end_a_transfer(server, here, there):
    clock = OtherClock(wrong_by_s=0)
    cards = [here.put(os.urandom(3 * CHUNK_BYTES)), here.put(b"small")]

    async def jump(progress):
        clock.wrong_by_s += 10_000

    moved = await http_transport(here, clock).send(server.node(), cards, Terms(on_progress=jump))
    assert {receipt.digest for receipt in moved.receipts} == {card.digest for card in cards}


def test_an_answer_that_was_changed_is_not_believed(server):
    listener = socket.create_server(("127.0.0.1", 0))
    fake = DataServerProcess(server.root, port=listener.getsockname()[1])
    line = open_line(fake)
    line.begin("hello", encode(Files(())), 0)
    connection, _ = listener.accept()
    connection.recv(1 << 16)
    head = encode(Hello("a liar"))
    connection.sendall(
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nRingrift-Head: %d\r\nRingrift-Signature: %s\r\n\r\n%s"
        % (len(head), len(head), b"0" * 64, head)
    )
    with pytest.raises(NotSigned):
        line.finish(Hello)
    for end in (connection, listener, line):
        end.close()


def test_the_secret_of_a_folder_is_made_once_and_for_its_owner_alone(tmp_path):
    settings = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "data")}).settings
    first = data_secret(settings)
    assert len(first) >= 32
    assert data_secret(settings) == first
    assert stat.S_IMODE((tmp_path / "data" / SECRET_FILE).stat().st_mode) == 0o600
    other = load_settings({"RINGRIFT_DATA_DIR": str(tmp_path / "other")}).settings
    assert data_secret(other) != first
    given = load_settings({"RINGRIFT_DATA_SECRET": "given by a person"}).settings
    assert data_secret(given) == b"given by a person"


# --- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", "x" * 64])
@pytest.mark.parametrize("verb", ["held", "fetch_batch", "batch"])
def test_no_name_leads_out_of_the_folder(server, verb, name):
    head = b'{"files":[["%s",5]]}' % name.encode()
    status, body = raw(server, words(verb, head))
    assert status == 400
    assert b"must be SHA-256 in 64 lower-case hex digits" in body


@pytest.mark.parametrize(
    ("verb", "head"),
    [
        ("nothing_such", b"{}"),
        ("held", b"not json"),
        ("held", b'{"files":[["' + b"a" * 64 + b'",-1]]}'),
        ("chunks", encode(Chunks(File("a" * 64, 5), (7,), bytes(32)))),
        ("chunks", encode(Chunks(File("a" * 64, 5), (0,), bytes(31)))),
        ("missing", encode(ChunkRange(File("a" * 64, 5), -1, bytes(32)))),
        ("fetch_chunks", encode(Positions(File("a" * 64, 1 << 40), tuple(range(CHUNKS_AT_ONCE + 1))))),
        ("batch", encode(Files((File("a" * 64, CHUNK_BYTES + 1),)))),
    ],
)
def test_a_wrong_request_is_refused_with_a_reason_and_the_server_lives(server, line, verb, head):
    status, body = raw(server, words(verb, head))
    assert status == 400
    assert b'"wrong"' in body
    assert line.ask("hello", Files(()), Hello).node == THERE


def test_a_body_larger_than_any_real_one_is_refused_unread(server):
    said = words()
    assert raw(server, said, **{"Content-Length": str(1 << 40)})[0] == 400
    assert raw(server, said, **{"Ringrift-Head": str(1 << 30)})[0] == 400


def test_other_methods_and_noise_end_the_connection_only(server, line):
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as noise:
        noise.sendall(b"\x00\xff" * 100 + b"\r\n\r\n")
        assert b"400" in noise.recv(1 << 16)
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("GET", "/etc/passwd")
    assert connection.getresponse().status == 405
    connection.close()
    assert line.ask("hello", Files(()), Hello).node == THERE


def test_a_full_disk_there_is_told_before_a_byte_goes(line):
    huge = File(artifact(b"x").digest, 1 << 60)
    with pytest.raises(StorageFull, match="free in"):
        line.ask("held", Files((huge,)), Moved)
    with pytest.raises(StorageFull):
        line.ask("missing", ChunkRange(huge, 0, bytes(32)), Positions)


async def test_a_full_disk_here_is_told_before_a_byte_comes(server, here, there):
    card = there.put(b"content")
    with pytest.raises(StorageFull):
        await http_transport(here, reserve_bytes=1 << 60).fetch(server.node(), [card], Terms())


def test_a_chunk_with_a_flipped_bit_is_named_and_not_kept(line, there):
    content = random.Random(1).randbytes(2 * CHUNK_BYTES)
    file = File(hashlib.sha256(content).hexdigest(), len(content))
    good, bad = content[:CHUNK_BYTES], bytearray(content[CHUNK_BYTES:])
    bad[9] ^= 1
    hashes = hash_of(good) + hash_of(content[CHUNK_BYTES:])
    line.begin("chunks", encode(Chunks(file, (0, 1), hashes)), len(content))
    line._socket.sendall(good + bytes(bad))
    assert line.finish(Positions).positions == (1,)
    assert line.ask("missing", ChunkRange(file, 0, hashes), Positions).positions == (1,)


def test_one_connection_too_many_is_turned_away_and_there_is_room_again(own_server):
    server = own_server
    lines = []
    for _ in range(64):
        lines.append(open_line(server))
        lines[-1].ask("hello", Files(()), Hello)
    extra = open_line(server)
    with pytest.raises(Unavailable, match="all connections"):
        extra.ask("hello", Files(()), Hello)
    for line in (*lines, extra):
        line.close()
    deadline = time.monotonic() + 60
    while True:
        fresh = open_line(server)
        try:
            assert fresh.ask("hello", Files(()), Hello).node == THERE
            break
        except Unavailable:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        finally:
            fresh.close()


# --- strangers --------------------------------------------------------------------------------------------


def memory_bytes(server):
    return psutil.Process(server.process.pid).memory_info().rss


def ended(connection):
    """Whether the other side ended it, after what it still had to say."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


def test_connections_that_say_nothing_keep_no_peer_out(own_server):
    idle = [socket.create_connection(("127.0.0.1", own_server.port), timeout=60) for _ in range(200)]
    for each in idle[:20]:
        with suppress(OSError):  # it may be gone already, in favor of a later one
            each.sendall(b"POST /v1/hello HTTP/1.1\r\nX: ")
    line = open_line(own_server)
    assert line.ask("hello", Files(()), Hello).node == THERE
    more = [socket.create_connection(("127.0.0.1", own_server.port), timeout=60) for _ in range(200)]
    assert line.ask("hello", Files(()), Hello).node == THERE, "a peer is not sent away for strangers"
    for each in (*idle, *more, line):
        each.close()


def test_whoever_says_nothing_signed_in_time_is_sent_away():
    clock = ManualRuntime()
    once = OnceOnly(now_s=clock.now_s, monotonic_s=clock.monotonic_s)
    server = DataHttpServer(
        ("127.0.0.1", 0), answers=None, signer=Signer(b"x"), once_only=once, monotonic_s=clock.monotonic_s
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with socket.create_connection(server.server_address, timeout=60) as slow:
        slow.sendall(b"POST /v1/hello HTTP/1.1\r\nX: a letter now and then does not h")
        while not server._strangers:
            time.sleep(0.01)
        clock.advance(STRANGER_S + 1)
        assert ended(slow)
    server.shutdown()
    server.server_close()
    thread.join(60)


def test_large_heads_of_strangers_cost_nothing(own_server):
    line = open_line(own_server)
    assert line.ask("hello", Files(()), Hello).node == THERE
    before, rude = memory_bytes(own_server), []
    try:
        for number in range(60):
            sock = socket.create_connection(("127.0.0.1", own_server.port), timeout=60)
            rude.append(sock)
            length = 4 << 20
            said = f"Content-Length: {length}\r\nRingrift-Head: {length}\r\nRingrift-Digest: {'0' * 64}\r\n"
            with suppress(OSError):
                sock.sendall(f"POST /v1/held HTTP/1.1\r\n{said if number % 2 else said[:-85]}\r\n".encode())
                sock.sendall(bytes(1 << 18))
        assert memory_bytes(own_server) - before < 30 << 20
        assert line.ask("hello", Files(()), Hello).node == THERE
    finally:
        for each in (*rude, line):
            each.close()


def test_headers_are_bounded_together(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as rude:
        with suppress(OSError):
            for number in range(99):
                rude.sendall(
                    b"POST /v1/hello HTTP/1.1\r\n"
                    if not number
                    else b"X%d: " % number + b"a" * 1000 + b"\r\n"
                )
        assert ended(rude)


def test_a_small_head_of_an_earlier_version_is_taken_and_a_large_one_is_told_why_not(server):
    assert raw(server, words(), **{"Ringrift-Digest": None})[0] == 200
    large = words("held", b'{"files":[]' + b" " * 20_000 + b"}")
    status, body = raw(server, large, **{"Ringrift-Digest": None})
    assert (status, b"needs its digest" in body) == (400, True)
    assert raw(server, large)[0] == 200


def test_depth_is_refused_in_words(server, line):
    deep = b'{"files":[],"cards":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"
    assert raw(server, words("held", deep))[0] == 400
    assert line.ask("hello", Files(()), Hello).node == THERE


# --- life -------------------------------------------------------------------------------------------------


def test_it_ends_when_asked_and_says_where_it_listens_only_until_then(own_server):
    address = own_server.root / ADDRESS_FILE
    line = open_line(own_server)
    line.ask("hello", Files(()), Hello)
    assert address.exists()
    own_server.stop()
    assert own_server.process.returncode == 0
    assert not address.exists()
    with pytest.raises(LineBroken):
        line.ask("hello", Files(()), Hello)
    line.close()


async def address_of_another(path, pid):
    async with asyncio.timeout(60):
        while True:
            if path.exists() and (said := json.loads(path.read_text()))["pid"] != pid:
                return said
            await asyncio.sleep(0.05)


async def test_its_supervisor_starts_it_again_after_kill_9(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("RINGRIFT_DATA_PORT", "0")
    manager = get_daemon_manager()
    await manager.start(DaemonType.EVENT_ROUTER)
    assert await manager.start(DaemonType.DATA_SERVER)
    first = await address_of_another(tmp_path / ADDRESS_FILE, 0)
    os.kill(first["pid"], signal.SIGKILL)
    second = await address_of_another(tmp_path / ADDRESS_FILE, first["pid"])
    socket.create_connection(("127.0.0.1", second["port"]), timeout=30).close()
    await manager.shutdown()
    assert not (tmp_path / ADDRESS_FILE).exists()


async def test_a_port_that_is_taken_is_told(server, tmp_path):
    environment = {"RINGRIFT_DATA_DIR": str(tmp_path), "RINGRIFT_DATA_PORT": str(server.port)}
    second = data_server(load_settings(environment).settings, SystemRuntime())
    with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1:{server.port}"):
        await second.run()


async def test_the_overlay_address_is_tried_first_and_the_plain_one_after_it(server, here):
    card = here.put(b"by another way")
    node = server.node(overlay_ip="127.0.0.2", ssh_host="127.0.0.1")
    moved = await http_transport(here).send(node, [card], Terms())
    assert moved.failed == ()
    assert [receipt.digest for receipt in moved.receipts] == [card.digest]
