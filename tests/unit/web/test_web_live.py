"""The stream behind the live page, over real HTTP, and what guards it."""

import json
import threading

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.engine.memory import memory_engine
from ringrift.health.run_status import STATUS_KEY
from ringrift.testing.sample_run import TWELVE, SampleRun
from ringrift.testing.simulation import ManualRuntime
from ringrift.web import live_stream
from ringrift.web.access import POLICY, AccessKeys
from ringrift.web.endpoints import Probes
from ringrift.web.live_stream import Sections
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import STALE_S, ProbeSnapshot, RunReader, SnapshotBoard

ONE = SampleRun()


def status_view(run=ONE, *, taken_s=0.0, **changes):
    fields = {
        "taken_s": taken_s,
        "node_id": "box",
        "alive": True,
        "ready": True,
        "reason": "",
        "uptime_s": 1.0,
        "health_score": 1.0,
        "run": run.status() if isinstance(run, SampleRun) else run,
    }
    return ProbeSnapshot(**{**fields, **changes})


def with_games(games):
    status = ONE.status()
    config = msgspec.structs.replace(status.configs["square8_2p"], games=games)
    return msgspec.structs.replace(status, configs={"square8_2p": config})


# --- parts ----------------------------------------------------------------------------------------------


def values(parts):
    return {name: msgspec.json.decode(body) for name, body in parts.items()}


def test_only_the_parts_that_changed_are_told():
    sections = Sections("boot")
    sections.take(status_view())
    mark = sections.mark
    sections.take(status_view(with_games(1)))
    full, parts = sections.since(mark)
    assert full is False
    assert list(parts) == ["config/square8_2p"]
    assert values(parts)["config/square8_2p"]["games"] == 1


def test_a_config_that_is_gone_is_told_as_gone():
    sections = Sections("boot")
    sections.take(status_view(SampleRun(configs=("a_2p", "b_2p"))))
    mark = sections.mark
    sections.take(status_view(SampleRun(configs=("a_2p",))))
    assert values(sections.since(mark)[1])["config/b_2p"] is None
    assert "config/b_2p" not in sections.since("")[1]


@pytest.mark.parametrize(
    "mark", ["", "other.3", "boot.99", "boot.", "boot.-1", "boot.1²", "boot." + "9" * 400, "."]
)
def test_a_mark_that_means_nothing_here_gets_everything(mark):
    sections = Sections("boot")
    sections.take(status_view())
    full, parts = sections.since(mark)
    assert full is True
    assert {"run", "config/square8_2p", "curve/square8_2p", "decisions"} <= set(parts)


@given(
    st.lists(st.tuples(st.sets(st.sampled_from("abc")), st.integers(0, 3)), min_size=1, max_size=12),
    st.data(),
)
def test_whoever_applies_the_changes_since_any_mark_has_the_newest_picture(history, data):
    sections, seen = Sections("boot"), []
    for configs, seed in history:
        run = SampleRun(configs=tuple(sorted(configs)), seed=seed, promotions=seed).status()
        sections.take(status_view(run))
        seen.append((sections.mark, values(sections.since("")[1])))
    mark, known = data.draw(st.sampled_from(seen))
    _, changes = sections.since(mark)
    known = {**known, **values(changes)}
    assert {name: value for name, value in known.items() if value is not None} == seen[-1][1]


# --- stream ---------------------------------------------------------------------------------------------


@pytest.fixture
def runtime():
    return ManualRuntime()


@pytest.fixture
def board():
    return SnapshotBoard()


@pytest.fixture
def probes(board, runtime):
    return Probes(board, None, runtime, keys=AccessKeys("t" * 64, runtime))


@pytest.fixture
def client(probes):
    server = ProbeServer(probes.app(), host="127.0.0.1", port=0)
    server.start()
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http
    probes.stream.close()
    server.stop()


def messages(lines):
    """Server-sent events as (kind, body, mark)."""
    fields = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], json.loads(fields["data"]), fields.get("id")
            fields = {}


def test_a_watcher_gets_the_picture_and_then_what_changes(client, board, runtime):
    board.show(status_view(taken_s=runtime.monotonic_s()))
    with client.stream("GET", "/events/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        news = messages(answer.iter_lines())
        kind, body, _ = next(news)
        assert (kind, body["full"], body["alive"]) == ("picture", True, True)
        assert body["parts"]["curve/square8_2p"][0]["rows"] > 0
        board.show(status_view(with_games(7), taken_s=runtime.monotonic_s()))
        body = next(body for kind, body, _ in news if kind == "picture")  # a slow machine beats in between
        assert body["full"] is False
        assert body["parts"]["config/square8_2p"]["games"] == 7
        assert "curve/square8_2p" not in body["parts"]


@pytest.mark.parametrize("way", ["header", "parameter"])
def test_a_watcher_that_comes_back_gets_what_it_missed(client, board, runtime, way):
    board.show(status_view(taken_s=runtime.monotonic_s()))
    with client.stream("GET", "/events/stream") as answer:
        mark = next(messages(answer.iter_lines()))[2]
    board.show(status_view(with_games(8), taken_s=runtime.monotonic_s()))
    given_mark = {"headers": {"last-event-id": mark}} if way == "header" else {"params": {"mark": mark}}
    with client.stream("GET", "/events/stream", **given_mark) as answer:
        _, body, _ = next(messages(answer.iter_lines()))
    assert body["full"] is False
    assert list(body["parts"]) == ["config/square8_2p"]


def test_silence_is_broken_by_beats_that_say_how_old_the_picture_is(client, board, runtime, monkeypatch):
    monkeypatch.setattr(live_stream, "BEAT_S", 0.05)
    board.show(status_view(taken_s=runtime.monotonic_s()))
    with client.stream("GET", "/events/stream") as answer:
        news = messages(answer.iter_lines())
        next(news)
        assert next(news)[:1] == ("beat",)
        runtime.advance(STALE_S + 1)
        late = next(body for kind, body, _ in news if kind == "beat" and not body["alive"])
        assert "has not reported" in late["reason"]


def test_one_watcher_too_many_is_sent_away_and_a_place_is_free_again(client, board, probes, monkeypatch):
    monkeypatch.setattr(live_stream, "WATCHERS_MAX", live_stream.WATCHERS_WITH_KEY + 1)
    with client.stream("GET", "/events/stream") as answer:
        news = messages(answer.iter_lines())
        next(news)
        refused = client.get("/events/stream")
        assert refused.status_code == 503
        assert "close one" in refused.json()["error"]
        key = {"authorization": "Bearer " + "t" * 64}
        with client.stream("GET", "/events/stream", headers=key) as owner:
            assert owner.status_code == 200, "nobody shuts the owner out"
    for _ in range(3000):
        board.wake()
        if probes.stream.watchers == 0:
            break
        threading.Event().wait(0.02)
    with client.stream("GET", "/events/stream") as answer:
        assert answer.status_code == 200


def test_watchers_are_told_when_the_server_ends(client, probes):
    with client.stream("GET", "/events/stream") as answer:
        news = messages(answer.iter_lines())
        next(news)
        probes.stream.close()
        assert [kind for kind, _, _ in news][-1] == "bye"


# --- page and guard -------------------------------------------------------------------------------------


def test_the_page_and_its_files_are_served_under_a_strict_policy(client):
    page = client.get("/")
    assert "RingRift" in page.text
    assert page.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    for name in ("page.css", "main.js", "vendor/uPlot.iife.min.js", "vendor/LICENSE.uPlot.txt", "icon.svg"):
        file = client.get(f"/page/{name}")
        assert file.status_code == 200
        assert file.headers["cache-control"] == "no-cache"
    assert client.get("/page/../endpoints.py").status_code == 404


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8790", "127.0.0.1.evil.example", "", "localhost.evil"]
)
@pytest.mark.parametrize("path", ["/", "/events/stream", "/status", "/page/main.js"])
def test_a_foreign_name_that_leads_here_is_refused(client, host, path):
    refused = client.get(path, headers={"host": host})
    assert refused.status_code == 403
    assert "does not answer" in refused.json()["error"]


def test_an_event_under_a_foreign_name_is_refused(client):
    refused = client.post("/event", json={"event_type": "HOST_ONLINE"}, headers={"host": "evil.example"})
    assert refused.status_code == 403


@pytest.mark.parametrize("host", ["localhost", "LocalHost:80", "127.0.0.1:1", "[::1]:8790", "10.1.2.3"])
def test_names_that_are_nobody_elses_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_monitoring_comes_under_any_name_with_the_token(client):
    foreign = {"host": "node-7.cluster.example"}
    assert client.get("/metrics", headers=foreign).status_code == 403
    assert (
        client.get("/metrics", headers={**foreign, "authorization": "Bearer " + "t" * 64}).status_code == 200
    )


def test_probes_answer_under_any_name_and_tell_no_details(client):
    answer = client.get("/livez", headers={"host": "node-7.cluster.example"})
    assert (answer.status_code, answer.json()) == (503, {"alive": False})


# --- metrics and reading --------------------------------------------------------------------------------


def test_metrics_tell_of_every_config(client, board, runtime):
    board.show(status_view(SampleRun(configs=TWELVE), taken_s=runtime.monotonic_s()))
    text = client.get("/metrics").text
    for name in ("games", "rows", "rating", "rating_low", "rating_high", "games_per_second", "train_bucket"):
        assert f'ringrift_{name}{{config="square8_2p"}}' in text
    assert 'ringrift_promotions_total{config="hex8_4p"} 9.0' in text
    assert 'ringrift_rating{config="hexagonal_4p"}' not in text, "it has no champion"
    assert 'ringrift_queue_items{kind="evaluate",state="dead"} 1.0' in text


def test_openmetrics_takes_any_config_name(client, board, runtime):
    board.show(status_view(SampleRun(configs=('open_spiel:go(x="1\\2\n")',)), taken_s=runtime.monotonic_s()))
    answer = client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.text.endswith("# EOF\n")
    assert r'config="open_spiel:go(x=\"1\\2\n\")"' in answer.text


async def test_a_status_that_cannot_be_read_leaves_the_last_good_one():
    engine, reader = memory_engine(ManualRuntime()), RunReader()
    assert await reader.read(engine.kv) is None
    await engine.kv.put(STATUS_KEY, msgspec.json.encode(ONE.status()))
    assert await reader.read(engine.kv) == ONE.status()
    await engine.kv.put(STATUS_KEY, b'{"at_s": "never"}')
    assert await reader.read(engine.kv) == ONE.status()
    await engine.close()
