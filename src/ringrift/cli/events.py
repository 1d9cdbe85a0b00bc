"""`ringrift events`: watch them, check their wiring, look after dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import typer

from ringrift.bootstrap.wiring import audit_wiring
from ringrift.cli.dead_letters import dead_letter_app
from ringrift.cli.terminal import console, plain_errors, print_json, print_table
from ringrift.engine.opening import open_engine
from ringrift.engine.ports import EventLog, LogRecord
from ringrift.events.audit import audit_rows, audit_summary
from ringrift.events.event_wire import decode_body
from ringrift.events.normalization import delivered_as
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings

BATCH = 500
WAIT_S = 30.0
EXIT_FAULTS = 1

events_app = typer.Typer(no_args_is_help=True, help="Events: watch, check, repair.")
events_app.add_typer(dead_letter_app, name="dlq")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@events_app.command("tail")
def tail(
    event_type: Annotated[list[str] | None, typer.Option("--type", help="Only these events.")] = None,
    since: Annotated[float, typer.Option(help="Begin this many seconds ago.", min=0.0)] = 60.0,
    follow: Annotated[bool, typer.Option(help="Go on with new events until interrupted.")] = True,
    as_json: AsJson = False,
) -> None:
    """Print the events that cross processes, as they come."""
    with plain_errors():
        try:
            asyncio.run(_tail(event_type or [], since_s=since, follow=follow, as_json=as_json))
        except KeyboardInterrupt:
            raise typer.Exit from None


@events_app.command("audit")
def audit(
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Also what is connected or planned.")] = False,
) -> None:
    """Check from the real registrations that every event has a sender and a hearer."""
    with plain_errors():
        report = audit_wiring()
    if as_json:
        print_json(report.to_dict())
    else:
        print_table("Event wiring", ("state", "event", "why"), audit_rows(report, everything=everything))
        console().print(f"\n{audit_summary(report)}.")
    if not report.ok:
        raise typer.Exit(EXIT_FAULTS)


async def _tail(names: list[str], *, since_s: float, follow: bool, as_json: bool) -> None:
    runtime = system_runtime()
    engine = await open_engine(get_settings(), runtime)
    wanted = [name for given in names for name in delivered_as(given)] or None
    try:
        async with aclosing(_records(engine.events, runtime, wanted, since_s, follow=follow)) as records:
            async for record in records:
                typer.echo(_as_json(record) if as_json else _as_line(record))
    finally:
        await engine.close()


async def _records(
    log: EventLog, runtime: Runtime, types: list[str] | None, since_s: float, *, follow: bool
) -> AsyncGenerator[LogRecord, None]:
    after = await log.seq_at(since_s=runtime.now_s() - since_s)
    while True:
        last = (await log.bounds()).last
        while batch := await log.read(after=after, limit=BATCH, types=types):
            for record in batch:
                yield record
            after = batch[-1].seq
        after = max(after, last)
        if not follow:
            return
        await log.wait(after=after, timeout_s=WAIT_S)


def _as_line(record: LogRecord) -> str:
    body = decode_body(record)
    moment = datetime.fromtimestamp(record.appended_s, UTC).astimezone().strftime("%H:%M:%S.%f")[:-3]
    payload: dict[str, Any] = body.get("payload") or {}
    fields = "  ".join(f"{key}={_short(value)}" for key, value in payload.items())
    return f"{moment}  {record.type:<32} {body.get('source') or '-':<18} {fields}"


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


def _as_json(record: LogRecord) -> str:
    fields = {"seq": record.seq, "event_id": record.id, "event_type": record.type}
    return msgspec.json.encode({**fields, "appended_s": record.appended_s, **decode_body(record)}).decode()
