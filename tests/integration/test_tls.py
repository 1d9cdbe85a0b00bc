"""TLS of page and data server on loopback: the right key, a wrong one, and somebody in between."""

import random
import socket
import stat
import threading
from datetime import timedelta

import httpx
import pytest
from click.testing import CliRunner

from data_http import DataServerProcess, http_transport
from data_transports import HERE, THERE, Store
from ringrift.cli.main import app
from ringrift.data.config import read_nodes
from ringrift.data.transfer.contract import Terms, TransferFailed
from ringrift.data.transfer.http.connection import HttpLine, LineBroken, ServerTime
from ringrift.data.transfer.http.wire import Signer
from ringrift.errors import ConfigError
from ringrift.runtime import SystemRuntime
from ringrift.settings import load_settings
from ringrift.testing.simulation import ManualRuntime
from ringrift.tls import CertificateFiles, certificate_files, key_fingerprint, parse_pin
from ringrift.tls import certificate as tls_certificate
from ringrift.web import server as web_server
from ringrift.web.access import AccessKeys
from ringrift.web.endpoints import Probes
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import SnapshotBoard

NOW_S = 1_800_000_000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    process = DataServerProcess(
        tmp_path_factory.mktemp("tls") / THERE, more={"RINGRIFT_DATA_TLS": "yes"}
    ).start()
    yield process
    process.stop()


@pytest.fixture
def pin(server):
    return CertificateFiles(
        server.root / "tls" / "certificate.pem", server.root / "tls" / "key.pem"
    ).fingerprint()


@pytest.fixture
def here(tmp_path):
    return Store(tmp_path / HERE, SystemRuntime())


async def test_files_travel_both_ways_over_tls_with_the_right_key(server, here, pin):
    there = Store(server.root, SystemRuntime())
    content = random.Random(1).randbytes(48 << 20)  # over three connections at the same time
    small, large = here.put(b"data"), here.put(content)
    node = server.node(data_tls_sha256=pin)
    sent = await http_transport(here).send(node, [small, large], Terms())
    assert (len(sent.receipts), sent.failed) == (2, ())
    assert there.read(large) == content
    theirs = there.put(b"from there" * 300_000)
    await http_transport(here).fetch(node, [theirs], Terms())
    assert here.read(theirs) == b"from there" * 300_000


async def test_a_wrong_key_is_refused_and_nothing_goes(server, here):
    card = here.put(b"data of the wrong pin")
    with pytest.raises(TransferFailed, match="data_tls_sha256"):
        await http_transport(here).send(server.node(data_tls_sha256="0" * 64), [card], Terms())
    assert Store(server.root, SystemRuntime()).read(card) is None


async def test_a_plain_sender_is_told_that_the_server_speaks_tls(server, here):
    with pytest.raises(TransferFailed, match="speaks TLS alone"):
        await http_transport(here).send(server.node(), [here.put(b"plain")], Terms())


def test_what_a_server_said_before_it_closed_the_line_is_heard_though_we_were_still_sending(tmp_path):
    """It need not read what it will not answer, so our next write may find the line closed."""
    closed = threading.Event()

    def listen():
        connection, _ = listener.accept()
        connection.sendall(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
        connection.close()
        closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with socket.create_connection(listener.getsockname()) as sock, (tmp_path / "f").open("w+b") as file:
            file.write(b"x" * (4 << 20))
            file.flush()
            sock.settimeout(10.0)
            assert closed.wait(30)
            line = HttpLine(
                sock,
                host="there",
                signer=Signer(b"s" * 32),
                node="here",
                runtime=SystemRuntime(),
                server_time=ServerTime(SystemRuntime()),
            )

            def send():
                line.begin("batch", b"{}", 4 << 20)
                line.send_part(file, 0, 4 << 20)

            with pytest.raises(LineBroken, match="speaks TLS alone"):
                send()
        thread.join(30)


async def test_somebody_in_between_with_another_key_hears_nothing(server, here, pin, tmp_path):
    other = tls_certificate.own_certificate(tmp_path / "evil", now_s=NOW_S, names=()).context()
    heard = []

    def listen():
        for _ in range(1):
            connection, _ = listener.accept()
            try:
                wrapped = other.wrap_socket(connection, server_side=True)
                heard.append(wrapped.recv(1 << 16))
                wrapped.close()
            except OSError:
                heard.append(b"")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        node = server.node(data_tls_sha256=pin, data_port=listener.getsockname()[1])
        with pytest.raises(TransferFailed, match="fingerprint"):
            await http_transport(here).send(node, [here.put(b"secret games")], Terms())
        thread.join(60)
    assert heard == [b""], "not a byte was said to the wrong one"


async def test_with_a_pin_nothing_is_said_in_plain(here, pin):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        said = []

        def listen():
            connection, _ = listener.accept()
            said.append(connection.recv(5))
            connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            connection.close()

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        table = {
            "x": {"ssh_host": "127.0.0.1", "data_port": listener.getsockname()[1], "data_tls_sha256": pin}
        }
        node = read_nodes("me", table)["x"]
        with pytest.raises(TransferFailed, match="no TLS"):
            await http_transport(here).send(node, [here.put(b"x")], Terms())
        thread.join(60)
    assert said[0][:1] == b"\x16", "a handshake, and no request"


# --- certificates -----------------------------------------------------------------------------------------


def test_a_damaged_key_is_refused_and_a_damaged_certificate_made_again(tmp_path):
    files = tls_certificate.own_certificate(tmp_path / "tls", now_s=NOW_S, names=())
    pin, certificate, key = files.fingerprint(), files.certificate.read_bytes(), files.key.read_bytes()
    for place in range(0, len(key), 3):
        files.key.write_bytes(key[:place] + bytes([key[place] ^ 32]) + key[place + 1 :])
        try:
            tls_certificate.own_certificate(tmp_path / "tls", now_s=NOW_S, names=()).context()
            assert files.fingerprint() == pin
        except ConfigError as error:
            assert "key.pem" in str(error)
    files.key.write_bytes(key)
    for place in range(0, len(certificate), 3):
        changed = certificate[:place] + bytes([certificate[place] ^ 2]) + certificate[place + 1 :]
        files.certificate.write_bytes(changed)
        tls_certificate.own_certificate(tmp_path / "tls", now_s=NOW_S, names=()).context()
        assert files.fingerprint() == pin


def test_an_own_certificate_is_renewed_with_the_same_key(tmp_path):
    made = tls_certificate.own_certificate(tmp_path / "tls", now_s=NOW_S, names=("node.example", "10.1.2.3"))
    first, pin = made.certificate.read_bytes(), made.fingerprint()
    assert (
        tls_certificate.own_certificate(tmp_path / "tls", now_s=NOW_S, names=()).certificate.read_bytes()
        == first
    )
    late_s = NOW_S + (tls_certificate.VALID_FOR + timedelta(days=1)).total_seconds()
    tls_certificate.own_certificate(tmp_path / "tls", now_s=late_s, names=())
    assert made.certificate.read_bytes() != first
    assert made.fingerprint() == pin, "whoever pinned it need not know"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (made.key, made.key.parent)] == [0o600, 0o700]


def test_files_that_are_no_certificate_are_told(tmp_path):
    (tmp_path / "c.pem").write_text("no certificate")
    files = CertificateFiles(tmp_path / "c.pem", tmp_path / "missing.pem")
    for ask in (files.context, files.client_context, files.fingerprint):
        with pytest.raises(ConfigError, match=r"c\.pem"):
            ask()
    settings = load_settings({"RINGRIFT_TLS_CERTIFICATE": "x.pem"}).settings
    with pytest.raises(ConfigError, match="belong together"):
        certificate_files(settings, now_s=NOW_S, names=())
    for text in ("", "00" * 31, "z" * 64):
        with pytest.raises(ConfigError):
            parse_pin(text)
    assert parse_pin("AB:" * 31 + "AB") == "ab" * 32
    for der in (b"", b"\x30", b"\x30\x82\xff\xff", bytes(100)):
        with pytest.raises(ConfigError):
            key_fingerprint(der)


def test_the_fingerprint_is_printed_as_it_is_written_into_the_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RINGRIFT_NODE_ID", "gpu-1")
    told = CliRunner().invoke(app, ["data", "--data", str(tmp_path / "data"), "fingerprint"])
    assert told.exit_code == 0, told.output
    assert "[nodes.gpu-1]\ndata_tls_sha256 = " in told.output


# --- the page ---------------------------------------------------------------------------------------------


@pytest.fixture
def page(tmp_path):
    files = tls_certificate.own_certificate(tmp_path / "tls", now_s=SystemRuntime().now_s(), names=())
    runtime = ManualRuntime()
    probes = Probes(SnapshotBoard(), None, runtime, keys=AccessKeys("t" * 64, runtime))
    server = ProbeServer(probes.app(), host="127.0.0.1", port=0, tls=files)
    server.start()
    yield server, files
    probes.stream.close()
    server.stop()


def test_the_page_is_served_over_tls_and_idle_connections_keep_nobody_out(page):
    server, files = page
    assert server.url.startswith("https://")
    count = web_server.CONNECTIONS_MAX + 20
    idle = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(count)]
    try:
        with httpx.Client(base_url=server.url, verify=files.client_context(), timeout=60) as client:
            assert client.get("/").status_code == 200
            assert client.post("/pause", json={}).status_code == 401
            assert client.post("/link", headers={"authorization": "Bearer " + "t" * 64}).status_code == 200
    finally:
        for each in idle:
            each.close()


def test_a_client_of_this_machine_trusts_the_runs_own_certificate_alone(page, tmp_path):
    server, _ = page
    other = tls_certificate.own_certificate(tmp_path / "other", now_s=SystemRuntime().now_s(), names=())
    with (
        httpx.Client(base_url=server.url, verify=other.client_context(), timeout=60) as client,
        pytest.raises(httpx.ConnectError),
    ):
        client.get("/")
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"RingRift" not in plain.recv(1 << 16)
