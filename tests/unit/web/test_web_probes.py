"""The probe server over real HTTP."""

import socket
from contextlib import contextmanager, suppress

import httpx
import pytest

from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import ManualRuntime
from ringrift.web import server as server_module
from ringrift.web.access import CODE_S, SESSION_IDLE_S, AccessKeys
from ringrift.web.endpoints import BODY_BYTES_MAX, Probes, events_by_http
from ringrift.web.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, ProbeServer, is_loopback
from ringrift.web.snapshot import FRESH_S, STALE_S, ProbeSnapshot, SnapshotBoard

TOKEN = "t" * 64
AS_OWNER = {"authorization": f"Bearer {TOKEN}"}


class Published(list):
    refuse_with = None

    async def publish(self, event, headers):
        if self.refuse_with is not None:
            raise self.refuse_with
        self.append((event.event_type, event.payload, headers.get("traceparent")))
        return f"id-{len(self)}"

    async def pause(self, request):
        self.append(("pause", request.config, request.reason))

    async def resume(self, request):
        self.append(("resume", request.config, request.reason))


def status_view(runtime, **changes):
    fields = {
        "taken_s": runtime.monotonic_s(),
        "node_id": "box",
        "alive": True,
        "ready": True,
        "reason": "",
        "uptime_s": 12.0,
        "health_score": 1.0,
        "daemon_counts": {"running": 3, "failed": 0},
        "status": {"running": True, "daemons": {}},
        "events_routed": {"TRAINING_COMPLETED": 4},
    }
    return ProbeSnapshot(**{**fields, **changes})


@pytest.fixture
def runtime():
    return ManualRuntime()


@pytest.fixture
def board():
    return SnapshotBoard()


@pytest.fixture
def published():
    return Published()


@pytest.fixture
def probes(board, published, runtime):
    return Probes(board, published, runtime, keys=AccessKeys(TOKEN, runtime))


@pytest.fixture
def client(probes):
    with serving(probes.app()) as http:
        yield http


@contextmanager
def serving(app):
    server = ProbeServer(app, host="127.0.0.1", port=0)
    server.start()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http
    server.stop()


def test_a_process_that_never_reported_is_neither_alive_nor_ready(client):
    answer = client.get("/health")
    assert answer.status_code == 503
    assert "not reported yet" in answer.json()["reason"]
    assert client.get("/ready").status_code == 503


@pytest.mark.parametrize("path", ["/health", "/livez", "/ready", "/readyz"])
def test_a_well_process_says_so(client, board, runtime, path):
    board.show(status_view(runtime))
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.json()["node_id"] == "box"


def test_a_blocked_control_loop_is_not_alive_though_the_server_answers(client, board, runtime):
    board.show(status_view(runtime))
    runtime.advance(STALE_S + 5)
    answer = client.get("/livez")
    assert answer.status_code == 503
    assert "has not reported for 15 s" in answer.json()["reason"]


@pytest.mark.parametrize("path", ["/ready", "/status", "/metrics"])
def test_who_asks_gets_a_new_picture_when_the_latest_is_old(client, board, runtime, path):
    board.show(status_view(runtime, ready=False, reason="starting", status={}, health_score=0.5))
    runtime.advance(FRESH_S + 1)
    board.ask = lambda: board.show(status_view(runtime))
    answer = client.get(path)
    assert answer.status_code == 200
    assert any(new in answer.text for new in ('"ready":true', '"running":true', "health_score 1.0"))


def test_a_probe_answers_from_the_old_picture_while_the_loop_takes_no_new_one(client, board, runtime):
    board.show(status_view(runtime))
    runtime.advance(STALE_S - 1)
    board.ask = lambda: None
    assert client.get("/livez").status_code == 200
    runtime.advance(2)
    assert "has not reported for 11 s" in client.get("/livez").json()["reason"]


def test_a_dead_critical_daemon_is_named(client, board, runtime):
    board.show(status_view(runtime, alive=False, reason="event_router is failed"))
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["reason"]) == (503, "event_router is failed")


def test_alive_but_not_ready(client, board, runtime):
    board.show(status_view(runtime, ready=False, reason="dlq_retry is starting"))
    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").json()["reason"] == "dlq_retry is starting"


def test_metrics_can_be_scraped(client, board, runtime):
    board.show(status_view(runtime))
    text = client.get("/metrics").text
    assert 'daemon_count{state="running"} 3.0' in text
    assert "daemon_health_score 1.0" in text
    assert "daemon_uptime_seconds 12.0" in text
    assert 'ringrift_events_routed_total{event="TRAINING_COMPLETED"} 4.0' in text


def test_metrics_come_as_openmetrics_for_whoever_asks(client, board, runtime):
    board.show(status_view(runtime))
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert 'ringrift_events_routed_total{event="TRAINING_COMPLETED"} 4.0' in answer.text


def test_status_is_the_managers_status(client, board, runtime):
    board.show(status_view(runtime))
    assert client.get("/status").json() == {"running": True, "daemons": {}}


def test_an_event_is_taken_with_its_trace(client, published):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = client.post(
        "/event",
        json={"event_type": "HOST_ONLINE", "payload": {"node_id": "a"}},
        headers={**AS_OWNER, "traceparent": trace},
    )
    assert (answer.status_code, answer.json()) == (202, {"event_id": "id-1"})
    assert published == [("HOST_ONLINE", {"node_id": "a"}, trace)]


@pytest.mark.parametrize(
    ("request_arguments", "code", "why"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "the body is not"),
        ({"json": {"payload": {}}}, 400, "event_type"),
        ({"json": {"event_type": "X", "extra": 1}}, 400, "extra"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "application/json"),
        (
            {
                "content": b" " * (BODY_BYTES_MAX + 1),
                "headers": {"content-type": "application/json"},
            },
            413,
            "at most",
        ),
    ],
)
def test_a_wrong_event_is_refused_with_the_reason(client, published, request_arguments, code, why):
    headers = {**AS_OWNER, **request_arguments.pop("headers", {})}
    answer = client.post("/event", headers=headers, **request_arguments)
    assert answer.status_code == code
    assert why in answer.json()["error"]
    assert published == []


def test_an_event_that_cannot_be_stored_now_is_a_503(client, published):
    published.refuse_with = Unavailable("the event log is locked")
    answer = client.post("/event", json={"event_type": "HOST_ONLINE"}, headers=AS_OWNER)
    assert answer.status_code == 503
    assert "locked" in answer.json()["error"]


def test_a_taken_port_is_a_clear_error(probes):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*RINGRIFT_HEALTH_PORT"):
            ProbeServer(probes.app(), host="127.0.0.1", port=port)


# --- who may do what ------------------------------------------------------------------------------------


def test_nothing_is_taken_without_the_token(client, published):
    for path in ("/event", "/pause", "/resume", "/link"):
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {TOKEN}"}):
            refused = client.post(path, json={"event_type": "HOST_ONLINE"}, headers=headers)
            assert refused.status_code == 401
            assert "http_token" in refused.json()["error"]
            assert refused.headers["www-authenticate"] == "Bearer"
    assert published == []


@pytest.mark.parametrize(
    ("event_type", "payload"),
    [
        ("LEADER_ELECTED", {"leader_id": "evil"}),
        ("leader_elected", {"leader_id": "evil"}),
        ("MODEL_PROMOTED", {}),
        ("PROMOTION_COMPLETE", {"success": False}),
        ("SPLIT_BRAIN_DETECTED", {}),
        ("REGRESSION_CRITICAL", {}),
        ("NODE_TERMINATED", {"node_id": "a"}),
        ("no such event", {}),
        ("", {}),
    ],
)
def test_an_event_that_is_not_on_the_list_is_refused_even_with_the_token(
    client, published, event_type, payload
):
    body = {"event_type": event_type, "payload": payload}
    refused = client.post("/event", json=body, headers=AS_OWNER)
    assert refused.status_code == 403
    assert "HOST_ONLINE" in refused.json()["error"], "it says what does come by HTTP"
    assert published == []


def test_no_setting_lets_events_that_steer_come_by_http():
    assert events_by_http(("host_offline",)) == {"HOST_OFFLINE"}
    for name in ("LEADER_ELECTED", "MODEL_PROMOTED", "DAEMON_STOPPED", "NODE_TERMINATED", "NO_SUCH_EVENT"):
        with pytest.raises(ConfigError, match=name):
            events_by_http((name,))


def test_a_link_brings_a_session_once(client, published, runtime):
    code = client.post("/link", headers=AS_OWNER).json()["code"]
    session = client.post("/session", json={"code": code}).json()["session"]
    assert client.post("/session", json={"code": code}).status_code == 401, "once"
    as_page = {"authorization": f"Bearer {session}"}
    assert client.get("/session", headers=as_page).json() == {"may_read": True, "may_act": True}
    assert client.post("/pause", json={"reason": "x"}, headers=as_page).status_code == 204
    assert client.post("/resume", json={}, headers=as_page).status_code == 204
    assert published == [("pause", None, "x"), ("resume", None, "")]
    assert client.post("/link", headers=as_page).status_code == 401, "a session makes no further links"
    runtime.advance(SESSION_IDLE_S + 1)
    assert client.post("/pause", json={}, headers=as_page).status_code == 401


def test_a_link_is_not_good_for_long(client, runtime):
    code = client.post("/link", headers=AS_OWNER).json()["code"]
    runtime.advance(CODE_S + 1)
    assert client.post("/session", json={"code": code}).status_code == 401


def test_links_and_sessions_do_not_pile_up(runtime):
    keys = AccessKeys(TOKEN, runtime)
    first, *_, last = [keys.new_code() for _ in range(1000)]
    assert keys.exchange(first) is None
    assert keys.exchange(last) is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:1"},
        {"origin": "null"},
        {"origin": "http://[bad"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_origin_is_refused_whatever_key_it_has(client, published, headers):
    for path in ("/event", "/pause", "/session"):
        body = {"event_type": "HOST_ONLINE"}
        assert client.post(path, json=body, headers={**AS_OWNER, **headers}).status_code == 403
    for path in ("/status", "/metrics", "/events/stream", "/page/main.js"):
        assert client.get(path, headers=headers).status_code == 403
    assert published == []


def test_beyond_loopback_reading_needs_the_key_and_probes_tell_no_details(probes, board, runtime):
    board.show(status_view(runtime, ready=False, reason="dlq_retry is starting"))
    with serving(probes.app(open_to_read=False)) as client:
        for path in ("/status", "/metrics", "/events/stream"):
            assert client.get(path).status_code == 401
        assert client.get("/status", headers=AS_OWNER).json()["running"] is True
        assert client.get("/").status_code == 200, "the page itself tells nothing, and says what it needs"
        assert client.get("/readyz").json() == {"ready": False}
        assert client.get("/readyz", headers=AS_OWNER).json()["reason"] == "dlq_retry is starting"
        assert client.get("/session").json() == {"may_read": False, "may_act": False}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_is_known(host):
    assert is_loopback(host)
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("::")
    assert not is_loopback("node.example")


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text; version=abc",
        ";;;=",
        "text/plain;q=x",
        "application/openmetrics-text;",
        "\xff",
    ],
)
def test_an_odd_accept_header_still_gets_metrics(client, board, runtime, accept):
    board.show(status_view(runtime))
    answer = client.get("/metrics", headers={"accept": accept.encode("latin1")})
    assert answer.status_code == 200
    assert "ringrift_up 1.0" in answer.text


@pytest.mark.parametrize(
    "body",
    [
        b'{"event_type": "HOST_ONLINE", "payload": {"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}}",
        b'{"event_type": "HOST_ONLINE", "payload": {"]]]": ' + b'["]",' * 900 + b"1" + b"]" * 900 + b"}}",
        b"[" * 900_000,
        b'"' + b"\\\\" * 400_000,
        b"\xff\xfe",
        b'{"event_type": "\\ud800"}',
        b"",
    ],
)
def test_no_body_makes_the_server_fail(client, published, body):
    answer = client.post("/event", content=body, headers={**AS_OWNER, "content-type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert published == []


# --- strangers cannot use it up -------------------------------------------------------------------------


def test_idle_connections_keep_nobody_out(client, board, runtime):
    board.show(status_view(runtime))
    port = client.base_url.port
    idle = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(CONNECTIONS_MAX + 20)]
    try:
        idle[-1].sendall(b"GET /livez HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")  # and one that never ends its head
        for _ in range(3):
            assert httpx.get(f"{client.base_url}/livez", timeout=60).status_code == 200
    finally:
        for each in idle:
            each.close()


def test_bodies_that_never_arrive_keep_nobody_out(client, board, runtime):
    """A code is taken without a key, so its body may come from anybody."""
    board.show(status_view(runtime))
    slow = [
        socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60)
        for _ in range(CONNECTIONS_MAX + 20)
    ]
    head = b"POST /session HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    try:
        for each in slow:
            with suppress(ConnectionError):  # made way already
                each.sendall(head + b"Content-Length: 1000\r\n\r\n{")
        for _ in range(3):
            assert httpx.get(f"{client.base_url}/livez", timeout=60).status_code == 200
            assert client.post("/resume", json={}, headers=AS_OWNER).status_code == 204
    finally:
        for each in slow:
            each.close()


def test_a_head_that_does_not_arrive_is_not_waited_for(client, monkeypatch):
    monkeypatch.setattr(server_module, "HEAD_S", 0.2)
    with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60) as slow:
        slow.sendall(b"GET /livez HT")
        assert slow.recv(1) == b"", "the server ended it"


def test_a_huge_head_is_refused(client):
    with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=60) as rude:
        rude.sendall(b"GET /livez HTTP/1.1\r\nX: " + b"a" * (2 * HEAD_BYTES_MAX))
        assert b"400" in rude.recv(100)
