"""The live page of a made-up run on a real server, and a Chromium to look at it."""

import os
import shutil
from contextlib import contextmanager

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


@contextmanager
def running_browser(*arguments):
    """Without Chromium the test is skipped, except in CI."""
    program = chromium()
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("CI must have Chromium")
        pytest.skip("no Chromium here; Debian's package chromium brings it")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=program, headless=True, args=[*QUIET, *arguments], timeout=PATIENCE_S * 1000
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
