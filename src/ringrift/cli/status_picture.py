"""What `ringrift status` draws for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from ringrift.bootstrap.master_loop import MasterLoop
from ringrift.cli.run_picture import draw_run, head_line
from ringrift.cli.wording import count, duration
from ringrift.daemons.graph import PROFILES, profile_types
from ringrift.daemons.registry import product_registry
from ringrift.daemons.types import DaemonType
from ringrift.learning.run_status import RunStatus
from ringrift.settings import get_settings
from ringrift.web.address import Address

FRESH_S = 15.0  # the control process tells its status every second


def show(
    told: RunStatus | None,
    loop: MasterLoop | None,
    address: Address | None,
    *,
    now_s: float,
    waiting: Mapping[str, int],
) -> None:
    """*waiting* has the facts by config of a run that has told nothing yet."""
    terminal = Console(highlight=False)
    if told is None and loop is None and waiting:
        terminal.print(_not_started(waiting))
        return
    terminal.print(summary(told, loop, address, now_s=now_s))
    if told is not None:
        terminal.print(draw_run(told, now_s=now_s, width=terminal.width))


def _not_started(waiting: Mapping[str, int]) -> Text:
    configs = ", ".join(f"{config} ({count(facts)} facts)" for config, facts in waiting.items())
    text = Text("not running", style="bold yellow")
    return text.append(
        f": the run in {get_settings().data_dir} has not been started since it was restored or rebuilt: "
        f"{configs}; `ringrift run` goes on with it",
        style="default",
    )


def _learns(profile: str) -> bool:
    """Whether the loop is among the daemons of *profile*; yes for one that is not known."""
    if profile not in PROFILES:
        return True
    loops = {DaemonType.DATA_PIPELINE, DaemonType.CONTINUOUS_TRAINING_LOOP}
    return not loops.isdisjoint(profile_types(product_registry(), profile))


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
    if (told is None or now_s - told.at_s > FRESH_S) and not _learns(loop.profile):
        text = Text(f"running: process {loop.pid} with the profile {loop.profile}, which does not learn")
        old = "" if told is None else f"; what follows is {duration(now_s - told.at_s)} old"
        return text.append(f"{old}\n")
    if told is None:
        return Text(f"starting: process {loop.pid} runs and has told nothing yet")
    text = head_line(told, now_s=now_s)
    text.append(f"   process {loop.pid}" + (f"   page {address.url}" if address else ""), style="dim")
    if (age_s := now_s - told.at_s) > FRESH_S:
        text.append(f"\nthe control process has told nothing for {duration(age_s)}", style="bold red")
    return text.append("\n")
