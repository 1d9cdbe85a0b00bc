"""The probe server over real HTTP."""

import socket

import httpx
import pytest

from ringrift.errors import ConfigError, Unavailable
from ringrift.testing.simulation import ManualRuntime
from ringrift.web.endpoints import EVENT_BODY_BYTES_MAX, Probes
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import STALE_S, ProbeSnapshot, SnapshotBoard


class Published(list):
    refuse_with = None

    async def __call__(self, event, headers):
        if self.refuse_with is not None:
            raise self.refuse_with
        self.append((event.event_type, event.payload, headers.get("traceparent")))
        return f"id-{len(self)}"


def picture(runtime, **changes):
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
def client(board, published, runtime):
    server = ProbeServer(Probes(board, published, runtime).app(), host="127.0.0.1", port=0)
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
    board.show(picture(runtime))
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.json()["node_id"] == "box"


def test_a_blocked_control_loop_is_not_alive_though_the_server_answers(client, board, runtime):
    board.show(picture(runtime))
    runtime.advance(STALE_S + 5)
    answer = client.get("/livez")
    assert answer.status_code == 503
    assert "has not reported for 15 s" in answer.json()["reason"]


def test_a_dead_critical_daemon_is_named(client, board, runtime):
    board.show(picture(runtime, alive=False, reason="event_router is failed"))
    answer = client.get("/health")
    assert (answer.status_code, answer.json()["reason"]) == (503, "event_router is failed")


def test_alive_but_not_ready(client, board, runtime):
    board.show(picture(runtime, ready=False, reason="dlq_retry is starting"))
    assert client.get("/livez").status_code == 200
    assert client.get("/readyz").json()["reason"] == "dlq_retry is starting"


def test_metrics_can_be_scraped(client, board, runtime):
    board.show(picture(runtime))
    text = client.get("/metrics").text
    assert 'daemon_count{state="running"} 3.0' in text
    assert "daemon_health_score 1.0" in text
    assert "daemon_uptime_seconds 12.0" in text
    assert 'ringrift_events_routed_total{event="TRAINING_COMPLETED"} 4.0' in text


def test_metrics_come_as_openmetrics_for_whoever_asks(client, board, runtime):
    board.show(picture(runtime))
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")
    assert 'ringrift_events_routed_total{event="TRAINING_COMPLETED"} 4.0' in answer.text


def test_status_is_the_managers_status(client, board, runtime):
    board.show(picture(runtime))
    assert client.get("/status").json() == {"running": True, "daemons": {}}


def test_an_event_is_taken_with_its_trace(client, published):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    answer = client.post(
        "/event",
        json={"event_type": "HOST_ONLINE", "payload": {"node_id": "a"}},
        headers={"traceparent": trace},
    )
    assert (answer.status_code, answer.json()) == (202, {"event_id": "id-1"})
    assert published == [("HOST_ONLINE", {"node_id": "a"}, trace)]


@pytest.mark.parametrize(
    ("request_arguments", "code", "why"),
    [
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not an event"),
        ({"json": {"payload": {}}}, 400, "event_type"),
        ({"json": {"event_type": "X", "extra": 1}}, 400, "extra"),
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "application/json"),
        (
            {
                "content": b" " * (EVENT_BODY_BYTES_MAX + 1),
                "headers": {"content-type": "application/json"},
            },
            413,
            "at most",
        ),
    ],
)
def test_a_wrong_event_is_refused_with_the_reason(client, published, request_arguments, code, why):
    answer = client.post("/event", **request_arguments)
    assert answer.status_code == code
    assert why in answer.json()["error"]
    assert published == []


def test_an_event_that_cannot_be_stored_now_is_a_503(client, published):
    published.refuse_with = Unavailable("the event log is locked")
    answer = client.post("/event", json={"event_type": "HOST_ONLINE"})
    assert answer.status_code == 503
    assert "locked" in answer.json()["error"]


def test_a_taken_port_is_a_clear_error(board, published, runtime):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*RINGRIFT_HEALTH_PORT"):
            ProbeServer(Probes(board, published, runtime).app(), host="127.0.0.1", port=port)
