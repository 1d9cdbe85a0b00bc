"""Draw docs/pictures/run.svg: the live view of a real run of a few seconds."""

from __future__ import annotations

import asyncio
import io
import os
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

from ringrift.cli.live_view import LiveView
from ringrift.cli.logs import log_to_file
from ringrift.cli.run import run_with_view
from ringrift.runtime import system_runtime

TARGET = Path(__file__).parents[1] / "docs" / "pictures" / "run.svg"
RUN_S = 6.0


class LastPicture:
    """Keeps what a Live screen would show."""

    def __init__(self) -> None:
        self.picture: object = ""

    def update(self, picture: object, *, refresh: bool = False) -> None:  # noqa: ARG002 - the signature of rich.Live
        if isinstance(picture, Panel):
            self.picture = picture


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["RINGRIFT_HEALTH_PORT"] = "8790"
        log_path = Path("data/logs/control.log")
        with log_to_file(log_path):
            screen = LastPicture()
            view = LiveView(screen, Path("data"), log_path)  # type: ignore[arg-type]
            asyncio.run(run_with_view("standard", view, limit_s=RUN_S, runtime=system_runtime()))
    terminal = Console(record=True, width=104, file=io.StringIO(), force_terminal=True)
    terminal.print(screen.picture)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    drawing = terminal.export_svg(title="$ make run")
    # The reader's own fixed-width font will do; a picture should not fetch anything.
    TARGET.write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL))


if __name__ == "__main__":
    main()
