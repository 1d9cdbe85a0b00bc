"""A real browser in front of a real server. Without Chromium these tests are skipped, except in CI."""

import os
import shutil
import time

import pytest
from playwright.sync_api import sync_playwright

from held_port import HeldPort
from ringrift.runtime import SystemRuntime
from ringrift.testing.sample_run import SampleRun
from ringrift.web.access import AccessKeys
from ringrift.web.endpoints import Probes
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import ProbeSnapshot, SnapshotBoard

PATIENCE_S = 60.0  # with a busy machine
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# How many pixels of the canvas are painted in the colour of the curve.
PAINTED = """selector => {
  const canvas = document.querySelector(selector + ' canvas');
  const probe = document.createElement('canvas').getContext('2d');
  probe.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--accent').trim();
  probe.fillRect(0, 0, 1, 1);
  const [r, g, b] = probe.getImageData(0, 0, 1, 1).data;
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  let found = 0;
  for (let i = 0; i < data.length; i += 4) {
    const off = Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b);
    if (data[i + 3] > 200 && off < 30) found += 1;
  }
  return found;
}"""
DAEMONS = [
    {
        "name": name,
        "state": state,
        "category": "core",
        "since_s": since_s,
        "restarts": restarts,
        "error": error,
    }
    for name, state, since_s, restarts, error in (
        ("event_router", "running", 1_699_997_300.0, 0, ""),
        ("health_server", "running", 1_699_997_300.0, 0, ""),
        ("training_coordinator", "running", 1_699_997_300.0, 1, ""),
        ("quality_monitor", "degraded", None, 3, "no quality for 3 min"),
    )
]


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(
    scope="module"
)  # while it lives an event loop runs in this thread, which other tests need free
def browser():
    program = chromium()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium")
        pytest.skip("no Chromium here; Debian's package chromium brings it")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, headless=True, args=list(QUIET), timeout=PATIENCE_S * 1000
        )
        yield started
        started.close()


class Actions(list):
    """What was asked of the run."""

    async def publish(self, event, headers):
        self.append(event.event_type)
        return "id"

    async def pause(self, request):
        self.append("pause")

    async def resume(self, request):
        self.append("resume")


class Site:
    """The live page of a made-up run."""

    def __init__(self):
        self.runtime = SystemRuntime(seed=1)
        self.board = SnapshotBoard()
        self.server = None
        self.actions = Actions()
        self.open_to_read = True
        self._port = HeldPort()

    @property
    def url(self):
        return self.server.url

    def start(self):
        self.keys = AccessKeys("t" * 64, self.runtime)
        self.probes = Probes(self.board, self.actions, self.runtime, keys=self.keys)
        self.server = ProbeServer(
            self.probes.app(open_to_read=self.open_to_read), host="127.0.0.1", port=self._port.number
        )
        self.server.start()

    def stop(self):
        if self.server is not None:
            self.probes.stream.close()
            self.server.stop()
            self.server = None

    def close(self):
        self.stop()
        self._port.give_back()

    def show(self, run, **changes):
        """Have the control process tell *run*: a status, a sample of one, or None."""
        status = run.status() if isinstance(run, SampleRun) else run
        fields = {
            "taken_s": self.runtime.monotonic_s() + PATIENCE_S,  # it must not grow old while a tab opens
            "node_id": "workshop",
            "alive": True,
            "ready": True,
            "reason": "",
            "uptime_s": 60.0,
            "health_score": 1.0,
            "version": "1.2.3",
            "run": status,
            "daemons": DAEMONS,
            "events": [
                {
                    "id": "1",
                    "at_s": 1_700_000_000.0,
                    "type": "MODEL_PROMOTED",
                    "source": "promotion",
                    "about": "x 1",
                }
            ],
        }
        self.board.show(ProbeSnapshot(**{**fields, **changes}))


@pytest.fixture
def site():
    made = Site()
    made.start()
    yield made
    made.close()


class Visitor:
    """One tab, and everything that went wrong in it."""

    def __init__(self, page):
        self.page, self.complaints = page, []
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def text(self, selector):
        return self.page.locator(selector).inner_text()

    def wait_for_text(self, selector, text):
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.innerText.includes(text)",
            arg=[selector, text],
        )

    def wait_for_curve(self, selector):
        """Wait until a good part of the canvas has the colour of the curve."""
        self.page.wait_for_function(f"selector => ({PAINTED})(selector) > 400", arg=selector)

    def wait_for_complaint(self, text):
        """Console messages come by their own way, which may be longer than that of an answer."""
        end_s = time.monotonic() + PATIENCE_S
        while not any(text in said for said in self.complaints):
            assert time.monotonic() < end_s, self.complaints
            self.page.wait_for_timeout(20)


@pytest.fixture
def visit(browser, site):
    contexts = []

    def open_page(path="/", *, width=1280, height=900, theme="dark"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
        context.set_default_timeout(PATIENCE_S * 1000)
        contexts.append(context)
        visitor = Visitor(context.new_page())
        visitor.page.goto(site.url + path)
        visitor.wait_for_text("#link-text", "live")
        return visitor

    yield open_page
    for context in contexts:
        context.close()
