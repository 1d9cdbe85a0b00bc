"""`ringrift report`: the run so far as one file to keep or to send."""

from __future__ import annotations

from pathlib import Path

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.config_history import read_history
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.known_configs import require_config
from ringrift.cli.options import PATH, as_json, on_data_folder
from ringrift.cli.report_page import Chapter, html_report, markdown_report
from ringrift.cli.terminal import console
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError, StorageReadOnly
from ringrift.learning.run_status import RunStatus
from ringrift.runtime import system_runtime
from ringrift.web.run_reader import read_run_status

WRITERS = {".html": html_report, ".htm": html_report, ".md": markdown_report}


@click.command()
@click.argument("config", required=False, help="A config of the run; without one, all.")
@click.option(
    "--out",
    type=PATH,
    default=Path("ringrift-report.html"),
    show_default=True,
    metavar="FILE",
    help="The file to write, .html or .md.",
)
@as_json
@on_data_folder
def report(config: str | None, out: Path, as_json: bool) -> None:
    """Write a report: rating curve, costs, promotions with their evidence, models."""
    with plain_errors():
        write = WRITERS.get(out.suffix.lower())
        if write is None:
            raise ConfigError(f"--out is {str(out)!r}; it must end in {', '.join(WRITERS)}")
        run, chapters = ask_engine(lambda engine: _collect(engine, config))
        text = write(run, chapters, now_s=system_runtime().now_s())
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StorageReadOnly(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"file": str(out), "configs": [chapter.config for chapter in chapters]})
    else:
        console().print(f"wrote {out} ({len(text.encode()) / 1000:.0f} kB)", markup=False)


async def _collect(engine: Engine, config: str | None) -> tuple[RunStatus, list[Chapter]]:
    if config is not None:
        await require_config(engine.kv, config)
    run = await read_run_status(engine.kv)
    if run is None:
        raise ConfigError("the run has told nothing yet; try again when it has been up for a few seconds")
    wanted = [key for key in run.configs if config in (None, key)]
    return run, [Chapter(key, run.configs[key], await read_history(engine.kv, key)) for key in wanted]
