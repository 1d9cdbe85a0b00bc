"""`ringrift daemons`: every daemon type, whether it can run here, and how it is."""

from __future__ import annotations

from typing import Any

import click

from ringrift.bootstrap.master_loop import is_master_loop_running
from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.control import running_status
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.daemons.registry import DaemonSpec, product_registry

UNAVAILABLE, UNKNOWN, STOPPED = "unavailable", "unknown", "stopped"


@click.command()
@click.option("--available", is_flag=True, help="Leave out what cannot run yet.")
@as_json
@on_data_folder
def daemons(available: bool, as_json: bool) -> None:
    """List all daemon types: state, capability, and why one is unavailable."""
    with plain_errors():
        status = running_status()
        runs = status is not None or is_master_loop_running()
        rows = [_row(spec, status, unseen=UNKNOWN if runs else STOPPED) for spec in product_registry()]
    able, known = sum(row["available"] for row in rows), len(rows)
    if available:
        rows = [row for row in rows if row["available"]]
    if as_json:
        print_json({"control_process": runs, "daemons": {row["name"]: row for row in rows}})
        return
    shown = [(row["name"], row["state"], row["capability"], row["reason"] or row["about"]) for row in rows]
    print_table("Daemons", ("daemon", "state", "capability", "what it does, or why it can't"), shown)
    where = ""
    if not runs:
        where = "; no control process runs here, start one with `ringrift run`"
    elif status is None:
        where = "; the control process answers no probes, for its health_server does not run"
    console().print(f"\n{able} of {known} can run in this version{where}.")


def _row(spec: DaemonSpec, status: dict[str, Any] | None, *, unseen: str) -> dict[str, Any]:
    name = spec.daemon_type.value
    live = {} if status is None else status["daemons"].get(name, {})
    reason = spec.unavailable_reason
    return {
        "name": name,
        "state": UNAVAILABLE if reason else live.get("state", unseen),
        "available": not reason,
        "reason": reason or live.get("last_error") or "",
        "capability": spec.capability,
        "about": spec.about,
        "profiles": sorted(spec.profiles),
        "depends_on": [item.value for item in spec.depends_on],
        "restart_count": live.get("restart_count", 0),
        "uptime_seconds": live.get("uptime_seconds", 0.0),
    }
