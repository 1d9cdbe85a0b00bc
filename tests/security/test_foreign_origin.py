"""A web page of a foreign origin in the same browser: it reads nothing, changes nothing, uses nothing up."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from live_site import PATIENCE_S, Site, running_browser
from ringrift.testing.sample_run import SampleRun

ATTACK = Path(__file__).with_name("foreign_page.js").read_text(encoding="utf8").partition("\n")[2]


class _EvilPage(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>harmless</title><body>")

    def log_message(self, *_):
        pass


@pytest.fixture
def evil():
    server = ThreadingHTTPServer(("127.0.0.1", 0), _EvilPage)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture
def site():
    made = Site()
    made.start()
    made.show(SampleRun())
    yield made
    made.close()


def test_a_foreign_page_reads_changes_and_uses_up_nothing(site, evil):
    code = site.keys.new_code()
    session = site.keys.exchange(code)
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    with running_browser(rules) as browser:
        context = browser.new_context()
        context.set_default_timeout(PATIENCE_S * 1000)
        page = context.new_page()
        for origin in (f"http://127.0.0.1:{evil}", f"http://evil.example:{evil}"):
            page.goto(origin)
            got = page.evaluate(ATTACK, [site.url, session])
            assert {name: text for name, text in got.items() if text} == {}
        assert site.actions == []
        assert site.probes.stream.watchers == 0
        # Its own name leads to this machine: the same origin, for the browser, and it still gets nothing.
        rebound = site.url.replace("127.0.0.1", "evil.example")
        page.goto(f"{rebound}/livez")
        assert page.inner_text("body") == '{"alive":true}'
        read = "path => fetch(path).then(answer => answer.status)"
        posted = "{method: 'POST', headers: {'content-type': 'application/json'}, body: '{}'}"
        act = f"path => fetch(path, {posted}).then(answer => answer.status)"
        assert {page.evaluate(read, path) for path in ("/", "/status", "/metrics", "/events/stream")} == {403}
        assert {page.evaluate(act, path) for path in ("/event", "/pause", "/link", "/session")} == {403}
        context.close()
    assert site.actions == []
    assert httpx.get(f"{site.url}/status", timeout=60).status_code == 200


def test_no_answer_invites_other_origins(site):
    for method in ("GET", "OPTIONS", "POST"):
        for path in ("/", "/status", "/event", "/events/none"):
            answer = httpx.request(
                method, site.url + path, headers={"origin": "http://evil.example"}, timeout=60
            )
            assert not [name for name in answer.headers if name.startswith("access-control-")]
            assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
