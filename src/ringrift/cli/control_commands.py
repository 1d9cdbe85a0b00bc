"""`ringrift pause`, `resume` and `stop`: what people want of a run, said from another terminal."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
from typing import Any

import click

from ringrift.bootstrap.master_loop import MasterLoop, read_master_loop
from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import change_engine
from ringrift.cli.durations import parse_duration
from ringrift.cli.known_configs import require_config
from ringrift.cli.options import as_json, check_data_folder, on_data_folder
from ringrift.cli.terminal import console
from ringrift.cli.wording import duration
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError, Unavailable
from ringrift.learning.pauses import ALL, Pause, Pauses
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings
from ringrift.work.emergency import get_emergency_stop

LOOK_EVERY_S = 0.2
TELL_EVERY_S = 5.0

one_or_all = click.argument("config", required=False, help="A config of the run; without one, the whole run.")


@click.command()
@one_or_all
@click.option("--reason", default="", help="Shown to everybody who looks.")
@as_json
@on_data_folder
def pause(config: str | None, reason: str, as_json: bool) -> None:
    """Start no job of one config, or of all, also none that waits; what runs goes on to its end."""
    with plain_errors():
        answer = change_engine(lambda engine: _pause(engine, config, reason))
    again = "ringrift resume" if config is None else f"ringrift resume {config}"
    _tell(answer, as_json, f"{_whom(config)} is paused: no job of it starts; `{again}` lets it go on")


@click.command()
@one_or_all
@click.option("--clear-emergency", is_flag=True, help="Also end an emergency stop.")
@as_json
@on_data_folder
def resume(config: str | None, clear_emergency: bool, as_json: bool) -> None:
    """Let a paused config, or the whole run, go on."""
    with plain_errors():
        answer = change_engine(lambda engine: _resume(engine, config, clear_emergency=clear_emergency))
    cleared = answer["emergency_cleared"]
    text = f"{_whom(config)} may start jobs again" if answer["resumed"] else f"{_whom(config)} was not paused"
    text += f"; the emergency stop is over ({cleared})" if cleared else ""
    if answer["still_paused"]:
        text += f"; but the whole run is paused ({answer['still_paused']}): `ringrift resume`"
    if answer["emergency"]:
        text += f"; but an emergency stop is on ({answer['emergency']}): `ringrift resume --clear-emergency`"
    _tell(answer, as_json, text)


@click.command()
@click.option("--timeout", default="2m", show_default=True, help="How long to wait for its end: 90s, 2m.")
@as_json
@on_data_folder
def stop(timeout: str, as_json: bool) -> None:
    """Ask the run to stop, and wait until it has."""
    with plain_errors():
        limit_s = parse_duration(timeout, option="--timeout")
        check_data_folder()
        loop = read_master_loop()
        if loop is None or not loop.is_alive:
            where = get_settings().data_dir
            _tell({"stopped": False, "pid": None}, as_json, f"nothing runs in {where}")
            return
        took_s = asyncio.run(_end(loop, limit_s=limit_s, quiet=as_json, runtime=system_runtime()))
    told = f"process {loop.pid} stopped after {duration(took_s)}; `ringrift run` goes on where it was"
    _tell({"stopped": True, "pid": loop.pid, "took_s": took_s}, as_json, told)


async def _pause(engine: Engine, config: str | None, reason: str) -> dict[str, Any]:
    whom = ALL if config is None else await require_config(engine.kv, config)
    pause = Pause(reason=reason, by=user_name(), at_s=system_runtime().now_s())
    await Pauses(engine.kv).set(whom, pause)
    return {"config": whom, "paused": True, "reason": pause.reason}


async def _resume(engine: Engine, config: str | None, *, clear_emergency: bool) -> dict[str, Any]:
    pauses, emergency = Pauses(engine.kv), get_emergency_stop()
    if config is None:
        resumed = await pauses.end_all()
    else:
        resumed = await pauses.end([await require_config(engine.kv, config)])
    whole = await pauses.get(ALL)
    cleared = await emergency.clear() if clear_emergency else None
    notice = await emergency.notice()
    return {
        "config": ALL if config is None else config,
        "paused": False,
        "resumed": resumed,
        "still_paused": "" if whole is None else whole.why,
        "emergency_cleared": "" if cleared is None else cleared.reason,
        "emergency": "" if notice is None else notice.reason,
    }


def user_name() -> str:
    """Who gives the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in some containers
        return f"user {os.getuid()}"


async def _end(loop: MasterLoop, *, limit_s: float, quiet: bool, runtime: Runtime) -> float:
    """Ask with SIGTERM and wait; returns the seconds it took. Raises `Unavailable` if it stays."""
    try:
        os.kill(loop.pid, signal.SIGTERM)
    except ProcessLookupError:
        return 0.0
    except PermissionError:
        raise ConfigError(f"process {loop.pid} belongs to another user; only they can stop it") from None
    began_s = told_s = runtime.monotonic_s()
    while loop.is_alive:
        now_s = runtime.monotonic_s()
        if now_s - began_s > limit_s:
            raise Unavailable(
                f"process {loop.pid} was asked to stop and has not after {duration(limit_s)}",
                retry_after_s=10,
            )
        if now_s - told_s >= TELL_EVERY_S and not quiet:
            told_s = now_s
            console().print(f"process {loop.pid} ends its jobs, for {duration(now_s - began_s)} now…")
        await runtime.sleep(LOOK_EVERY_S)
    return runtime.monotonic_s() - began_s


def _whom(config: str | None) -> str:
    return "the run" if config is None else config


def _tell(answer: dict[str, Any], as_json: bool, text: str) -> None:
    if as_json:
        print_json(answer)
    else:
        console().print(text, markup=False)
