"""`ringrift explain CONFIG`: why the run does, or does not do, something now."""

from __future__ import annotations

import click
from rich.table import Table
from rich.text import Text

from ringrift.bootstrap.master_loop import is_master_loop_running
from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.known_configs import require_config
from ringrift.cli.options import as_json, on_data_folder, some_config
from ringrift.cli.terminal import console
from ringrift.cli.wording import duration, stage_title
from ringrift.daemons.requests import DaemonRequest, DaemonRequests
from ringrift.engine.ports import Engine
from ringrift.learning.pauses import Pause, Pauses
from ringrift.learning.snapshot import Explanation, read_explanations
from ringrift.runtime import system_runtime

LOOP = "data_pipeline"  # the daemon that plans


@click.command()
@some_config
@as_json
@on_data_folder
def explain(config: str, as_json: bool) -> None:
    """Say, stage by stage, what the run does for a config now, and why."""
    with plain_errors():
        found, paused, loop = ask_engine(lambda engine: _read(engine, config))
        runs, now_s = is_master_loop_running(), system_runtime().now_s()
    if as_json:
        told = {"config": config, "running": runs, "paused": paused, "stages": found}
        print_json({**told, "loop_stopped": loop})
        return
    if loop is not None:
        by, since = loop.by or "a user", duration(now_s - loop.at_s)
        text = f"DATA_PIPELINE is stopped by {by}, for {since} now{': ' * bool(loop.reason)}{loop.reason}"
        start = "`ringrift daemons start data_pipeline` lets the loop go on; this is what it last thought"
        console().print(Text(f"{text}; {start}.\n", style="blue"))
    if not runs:
        console().print("The run is stopped; this is what it last thought.\n")
    if paused is not None:
        by, since = paused.by or "a user", duration(now_s - paused.at_s)
        text = f"{config} is paused by {by}, for {since} now{': ' * bool(paused.reason)}{paused.reason}"
        console().print(Text(f"{text}; `ringrift resume` lets it go on.\n", style="blue"))
    if not found:
        console().print(f"The plan has said nothing of {config} yet.", markup=False)
        return
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for each in found:
        does = Text("goes on", style="green") if each.will else Text("waits", style="yellow")
        does = Text("paused", style="blue") if each.paused else does
        left = "" if each.until_s is None else f" (for {duration(each.until_s - now_s)})"
        table.add_row(stage_title(each.stage), does, Text(each.reason + left))
    console().print(table)


async def _read(engine: Engine, config: str) -> tuple[list[Explanation], Pause | None, DaemonRequest | None]:
    """What the plan said, who paused the config, and who stopped the loop that would say more."""
    await require_config(engine.kv, config)
    asked = await DaemonRequests(engine.kv).get(LOOP)
    stopped = asked if asked is not None and asked.holds_down else None
    return (
        await read_explanations(engine.kv, config),
        (await Pauses(engine.kv).read()).of(config),
        stopped,
    )
