"""`ringrift status`: how the run of a data folder is, in one read.

It is asked often, also by programs: what it loads is measured (`benchmarks/status_speed.py`), and what draws
is loaded only for people.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote

import click
import msgspec

from ringrift import clock
from ringrift.cli.command import as_json, has_run, on_data_folder, plain_errors, print_json
from ringrift.cli.main import load
from ringrift.coordination.coordinator_config import get_settings
from ringrift.engine.lock_files import PID_FILE, MasterLoop, read_pid_file
from ringrift.engine.sqlite.direct_reads import read_committed, read_committed_keys, read_committed_revision
from ringrift.engine.sqlite.files import SqliteConfig
from ringrift.errors import Corrupt
from ringrift.health.run_status import STATUS_KEY, Address, RunStatus, decode_run_status, read_address
from ringrift.learning.facts.high_water import MARKED_KEY, check_not_lost, read_mark

DRAWING = "ringrift.cli.drawing:show"
CONFIGS, FACTS_OF = "ringrift.learning.facts.ledger:CONFIGS", "ringrift.learning.facts.ledger:prefix_of"


@click.command()
@as_json
@on_data_folder
def status(as_json: bool) -> None:
    """Show how the run is: configs, stages, ratings, last decisions."""
    with plain_errors():
        settings, value, now_s, damage = get_settings(), None, clock.wall_s(), ""
        waiting: dict[str, int] = {}
        if has_run():
            config = SqliteConfig.from_settings(settings)
            value, now_s = read_committed(config, STATUS_KEY)
            # A database put back from an old copy reads well; only the mark beside it knows that more was
            # there.
            damage = damage_seen(settings.data_dir, revision=read_committed_revision(config, MARKED_KEY))
            waiting = not_started(config) if value is None else {}
        else:
            check_not_lost(settings)
        run = None if value is None else decode_run_status(value)
        loop = read_pid_file(settings.coordination_dir / PID_FILE)
        # its file outlives a process that was killed
        loop = loop if loop is not None and loop.is_alive else None
        address = read_address(settings.coordination_dir)
    if as_json:
        more = ({"damage": damage} if damage else {}) | ({"not_started": waiting} if waiting else {})
        print_json(document(run, loop, address, now_s=now_s) | more)
    else:
        load(DRAWING)(run, loop, address, now_s=now_s, waiting=waiting)
    if damage:
        click.secho(f"ringrift: {damage}", err=True, fg="red")


def not_started(config: SqliteConfig) -> dict[str, int]:
    """How many facts the configs have of a run that has told nothing, as one that was just restored."""
    prefix, facts_of = load(CONFIGS), load(FACTS_OF)
    names = [unquote(key.removeprefix(prefix)) for key in read_committed_keys(config, prefix)]
    return {name: len(read_committed_keys(config, facts_of(name))) for name in names}


def damage_seen(data_dir: Path, *, revision: int) -> str:
    """What the high-water mark says against a database with *revision*; empty if nothing."""
    try:
        mark = read_mark(data_dir)
    except Corrupt as error:
        return str(error)
    if mark is None or mark.revision <= revision:
        return ""
    return "this is older than the run was: changes are missing from the database; `ringrift run` says more"


def document(
    status: RunStatus | None, loop: MasterLoop | None, address: Address | None, *, now_s: float
) -> dict[str, Any]:
    """What programs get: the status, and whether it is of now."""
    fields: dict[str, Any] = {"configs": {}} if status is None else msgspec.to_builtins(status)
    if loop is None:
        fields["state"] = "stopped"  # a process that was killed could not say so
    return {
        "running": loop is not None,
        "pid": None if loop is None else loop.pid,
        "page": None if address is None else address.url,
        # a clock that was set back gives no age below 0
        "age_s": None if status is None else max(0.0, now_s - status.at_s),
        **fields,
    }
