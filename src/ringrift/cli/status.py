"""`ringrift status`: how the run of a data folder is, in one read."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.console import Console
from rich.text import Text

from ringrift.bootstrap.master_loop import MasterLoop, read_master_loop
from ringrift.cli.data_folder import AsJson, Data, ask_engine, has_run, use_data_folder
from ringrift.cli.run_picture import draw_run, head_line
from ringrift.cli.terminal import plain_errors, print_json
from ringrift.cli.wording import duration
from ringrift.engine.ports import Engine
from ringrift.learning.run_status import RunStatus
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings
from ringrift.web.address import Address, read_address
from ringrift.web.run_reader import read_run_status

FRESH_S = 15.0  # the control process tells its status every second


def status(as_json: AsJson = False, data: Data = None) -> None:
    """Show how the run is: configs, stages, ratings, last decisions."""
    with plain_errors():
        use_data_folder(data)
        told = ask_engine(_read) if has_run() else None
        loop = read_master_loop()
        loop = loop if loop is not None and loop.is_alive else None
        address = read_address(get_settings().coordination_dir)
        now_s = system_runtime().now_s()
    if as_json:
        print_json(document(told, loop, address, now_s=now_s))
        return
    terminal = Console(highlight=False)
    terminal.print(summary(told, loop, address, now_s=now_s))
    if told is not None:
        terminal.print(draw_run(told, now_s=now_s, width=terminal.width))


async def _read(engine: Engine) -> RunStatus | None:
    return await read_run_status(engine.kv)


def document(
    told: RunStatus | None, loop: MasterLoop | None, address: Address | None, *, now_s: float
) -> dict[str, Any]:
    """What programs get: the status, and whether it is of now."""
    fields: dict[str, Any] = {"configs": {}} if told is None else msgspec.to_builtins(told)
    if loop is None:
        fields["state"] = "stopped"
    return {
        "running": loop is not None,
        "pid": None if loop is None else loop.pid,
        "page": None if address is None else address.url,
        "age_s": None if told is None else max(0.0, now_s - told.at_s),
        **fields,
    }


def summary(
    told: RunStatus | None, loop: MasterLoop | None, address: Address | None, *, now_s: float
) -> Text:
    """Whether it runs, and how old what follows is."""
    folder = get_settings().data_dir
    if loop is None:
        text = Text("not running", style="bold yellow")
        if told is None:
            return text.append(
                f": no run was ever told of in {folder}; `ringrift run` starts one", style="default"
            )
        text.append(f": last seen {duration(now_s - told.at_s)} ago in {folder}", style="default")
        return text.append("; `ringrift run` goes on where it was\n", style="default")
    if told is None:
        return Text(f"starting: process {loop.pid} runs and has told nothing yet")
    text = head_line(told, now_s=now_s)
    text.append(f"   process {loop.pid}" + (f"   page {address.url}" if address else ""), style="dim")
    if (age_s := now_s - told.at_s) > FRESH_S:
        text.append(f"\nthe control process has told nothing for {duration(age_s)}", style="bold red")
    return text.append("\n")
