"""Draw the pictures of a run in docs/pictures: the live view (run.svg) and the live page (live-page*.png).

    python scripts/draw_pictures.py                 of a made-up run
    python scripts/draw_pictures.py --data data     of the run in that folder; while it runs, its page too

Needs Chromium and the extra `dev`.
"""

from __future__ import annotations

import argparse
import io
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright
from rich.console import Console, Group
from rich.panel import Panel
from rich.text import Text

from ringrift.cli.command import use_data_folder
from ringrift.cli.control import page_link
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.drawing import draw_run, head_line
from ringrift.coordination.coordinator_config import get_settings
from ringrift.health.run_status import RunStatus, read_address
from ringrift.runtime import Runtime, system_runtime
from ringrift.testing.sample_run import TWELVE, SampleRun
from ringrift.web.access import AccessKeys
from ringrift.web.endpoints import Probes
from ringrift.web.server import ProbeServer
from ringrift.web.snapshot import ProbeSnapshot, SnapshotBoard, read_run_status

TARGET = Path(__file__).parents[1] / "docs" / "pictures"
COLUMNS, LINES = 128, 34
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-sync",
)
# name, theme, width, height; no height takes the whole page
SHOTS = (
    ("live-page", "dark", 1280, 1010),
    ("live-page-light", "light", 1280, 1010),
    ("live-page-phone", "dark", 390, 844),
)
DAEMONS = (
    "event_router",
    "health_server",
    "dlq_retry",
    "data_pipeline",
    "training_coordinator",
    "quality_monitor",
)
EVENTS = (
    ("SELFPLAY_COMPLETE", "worker", "config_key square8_2p, games_completed 512"),
    ("TRAINING_COMPLETED", "worker", "config_key square8_2p, final_loss 2.11"),
    ("EVALUATION_COMPLETED", "worker", "config_key square8_2p, games_played 64"),
    ("MODEL_PROMOTED", "promotion", "config_key square8_2p, new_elo 701"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="the data folder of a run")
    data = parser.parse_args().data
    runtime = system_runtime()
    status = SampleRun(now_s=runtime.now_s()).status()
    if data is not None:
        use_data_folder(data)
        found = ask_engine(lambda engine: read_run_status(engine.kv))
        if found is None:
            parser.error(f"no run has told anything in {data}")
        status = found
    TARGET.mkdir(parents=True, exist_ok=True)
    draw_terminal(status)
    address = None if data is None else read_address(get_settings().coordination_dir)
    with started_browser() as browser:
        if data is None:
            for shot in SHOTS:  # each on a fresh page: one that nothing reports to is not well after 10 s
                with made_up_page(status, runtime) as link:
                    shoot(browser, link, *shot)
            with made_up_page(
                SampleRun(configs=TWELVE, now_s=runtime.now_s(), minutes=600).status(), runtime
            ) as link:
                shoot(browser, link, "live-page-twelve", "dark", 1280, 1010)
        elif address is not None:
            for shot in SHOTS:
                shoot(browser, partial(page_link, address), *shot)
    return 0


def draw_terminal(status: RunStatus) -> None:
    inner = COLUMNS - 4
    picture = Panel(
        Group(
            head_line(status, now_s=status.at_s),
            Text(),
            draw_run(status, now_s=status.at_s, width=inner, height=LINES),
        ),
        title="ringrift run",
        subtitle="Ctrl-C stops; `ringrift run` goes on where it was",
        padding=(0, 1),
    )
    terminal = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    terminal.print(picture)
    drawing = terminal.export_svg(title="$ make run")
    # The reader's own fixed-width font will do; a picture should not fetch anything.
    (TARGET / "run.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL))


@contextmanager
def started_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=list(QUIET))
        yield browser
        browser.close()


def shoot(browser: Browser, link: Callable[[], str], name: str, theme: str, width: int, height: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme="light" if theme == "light" else "dark",
        device_scale_factor=1.5,
    )
    page = context.new_page()
    page.goto(link())
    page.locator("#link-text", has_text="live").wait_for()
    page.wait_for_timeout(500)
    page.screenshot(path=TARGET / f"{name}.png")
    context.close()


@contextmanager
def made_up_page(status: RunStatus, runtime: Runtime) -> Iterator[Callable[[], str]]:
    board = SnapshotBoard()
    rows = [
        {
            "name": name,
            "state": "running",
            "category": "",
            "since_s": status.started_s,
            "restarts": 0,
            "error": "",
        }
        for name in DAEMONS
    ]
    events = [
        {"id": str(n), "at_s": status.at_s - 14 * n, "type": kind, "source": source, "about": about}
        for n, (kind, source, about) in enumerate(EVENTS)
    ]
    board.show(
        ProbeSnapshot(
            taken_s=runtime.monotonic_s(),
            node_id="workshop",
            alive=True,
            ready=True,
            reason="",
            uptime_s=1.0,
            health_score=1.0,
            run=status,
            daemons=rows,
            events=events,
        )
    )
    keys = AccessKeys(secrets.token_hex(), runtime)
    probes = Probes(board, _NoActions(), runtime, keys=keys)
    server = ProbeServer(probes.app(), host="127.0.0.1", port=0)
    server.start()
    yield lambda: f"{server.url}/#enter={keys.new_code()}"
    probes.stream.close()
    server.stop()


class _NoActions:
    """Nobody presses a button on a picture."""

    async def publish(self, *_: object) -> str:
        return ""

    async def pause(self, _: object) -> None: ...

    async def resume(self, _: object) -> None: ...


if __name__ == "__main__":
    sys.exit(main())
