"""`ringrift events`: watch them, check their wiring, look after dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

import click
import msgspec

from ringrift.cli.command import as_json, has_run, on_data_folder, plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, opened_engine
from ringrift.cli.format import NOTHING, console, duration, print_table
from ringrift.coordination.dead_letter_queue import DeadLetterQueue, FailedEvent
from ringrift.coordination.wiring_audit import audit_wiring
from ringrift.engine.ports import EventLog, LogRecord
from ringrift.errors import ConfigError
from ringrift.events.catalog.audit import AuditEntry, audit_entries, audit_summary, read_last_seen
from ringrift.events.catalog.names import delivered_as, is_canonical
from ringrift.events.catalog.table import CATALOG
from ringrift.events.event import decode_body
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import get_settings

# `ringrift events dlq`: dead letters, seen and settled by a person.


ALL = "all"
LISTED = 200  # the newest; the count below tells how many there are

one_or_all = click.argument("letter", help="A letter's id, its first characters, or 'all'.")


@click.group("dlq", no_args_is_help=True)
def dead_letters() -> None:
    """Events that a subscription could not handle."""


@dead_letters.command("list")
@click.option("--all", "everything", is_flag=True, help="Also recovered and abandoned ones.")
@as_json
@on_data_folder
def list_letters(everything: bool, as_json: bool) -> None:
    """List the letters that wait, newest first."""
    with _letters() as queue:
        letters = [] if queue is None else queue.get_failed_events(LISTED, include_abandoned=everything)
        stats = {} if queue is None else queue.get_stats()
    if as_json:
        print_json({"letters": letters, "stats": stats})
        return
    if not letters:
        console().print("No dead letter waits." if stats else "No event ever failed here.")
        return
    columns = ("id", "status", "event", "subscription", "tries", "since", "error")
    keys = ("event_id", "status", "event_type", "handler_name", "retry_count", "created_at", "error")
    print_table("Dead letters", columns, [[str(row[key]) for key in keys] for row in letters])
    counts = ", ".join(f"{stats.get(name, 0)} {name}" for name in ("pending", "recovered", "abandoned"))
    console().print(f"\n{counts}.")


@dead_letters.command("show")
@click.argument("letter", help="The letter's id, or its first characters.")
@on_data_folder
def show(letter: str) -> None:
    """Print one letter with its payload and error."""
    with _letters() as queue:
        print_json(_find(queue, letter).to_dict())


@dead_letters.command("retry")
@one_or_all
@on_data_folder
def retry(letter: str) -> None:
    """Have a letter (or all) retried now, by the process that has its subscription."""
    with _letters() as queue:
        chosen = _chosen(queue, letter)
        due = [found for found in chosen if queue is not None and queue.make_due(found.event_id)]
    console().print(
        f"{len(due)} of {len(chosen)} due now; the running process retries them in its next round."
    )


@dead_letters.command("drop")
@one_or_all
@click.option("--yes", is_flag=True, help="Do not ask.")
@on_data_folder
def drop(letter: str, yes: bool) -> None:
    """Delete a letter (or all) for good."""
    with _letters() as queue:
        chosen = _chosen(queue, letter)
        if not yes:
            click.confirm(f"Delete {len(chosen)} letters for good?", abort=True)
        gone = [found for found in chosen if queue is not None and queue.drop(found.event_id)]
    console().print(f"{len(gone)} deleted.")


@contextmanager
def _letters() -> Iterator[DeadLetterQueue | None]:
    """Open the queue of this data folder; None if nothing ever failed here. Looking creates no file."""
    with plain_errors():
        if not get_settings().dlq_path.exists():
            yield None
            return
        queue = DeadLetterQueue()
        try:
            yield queue
        finally:
            queue.close()


def _find(queue: DeadLetterQueue | None, letter: str) -> FailedEvent:
    exact = None if queue is None else queue.get_event(letter)
    if exact is not None:
        return exact
    # No search by prefix in the store: letters are few, and people look for one seldom.
    known = [] if queue is None else queue.get_failed_events(1_000_000, include_abandoned=True)
    matches = [row["event_id"] for row in known if row["event_id"].startswith(letter)]
    if len(matches) != 1 or queue is None:
        how_many = f"{len(matches)} letters begin" if matches else "no dead letter begins"
        raise ConfigError(f"{how_many} with {letter!r}; `ringrift events dlq list --all` shows them")
    found = queue.get_event(matches[0])
    assert found is not None, "letters are deleted by people, one command at a time"
    return found


def _chosen(queue: DeadLetterQueue | None, letter: str) -> list[FailedEvent]:
    if letter != ALL:
        return [_find(queue, letter)]
    return [] if queue is None else queue.get_pending_events(limit=1_000_000)


BATCH = 500  # records held in memory at a time, however far back one begins
WAIT_S = 30.0  # then it looks again by itself, in case a wake-up got lost
EXIT_FAULTS = 1
AUDIT_COLUMNS = ("state", "event", "last sent", "last received", "why")
NOT_NEGATIVE = click.FloatRange(min=0)


@click.group(no_args_is_help=True, commands=[dead_letters])
def events() -> None:
    """Watch events, check their wiring, repair."""


@events.command("tail")
@click.option("--type", "event_types", multiple=True, metavar="EVENT", help="Only this; may be repeated.")
@click.option("--since", type=NOT_NEGATIVE, default=60.0, metavar="S", help="Begin so many seconds ago; 60.")
@click.option("--follow/--no-follow", default=True, help="Go on with new events until interrupted.")
@as_json
@on_data_folder
def tail(event_types: tuple[str, ...], since: float, follow: bool, as_json: bool) -> None:
    """Print the events that cross processes, as they come."""
    with plain_errors():
        for name in event_types:
            _point_out(name)
        try:
            asyncio.run(_tail(event_types, since_s=since, follow=follow, as_json=as_json))
        except KeyboardInterrupt:
            raise click.exceptions.Exit from None


@events.command("audit")
@click.option("--all", "everything", is_flag=True, help="Also what is connected or planned.")
@as_json
@on_data_folder
def audit(everything: bool, as_json: bool) -> None:
    """Check that every event has a sender and a hearer, and when it was last seen in the data folder."""
    with plain_errors():
        # The wiring can be checked without a run; only the times come from one.
        seen = ask_engine(lambda engine: read_last_seen(engine.kv)) if has_run() else {}
        report = audit_wiring(seen)
    if as_json:
        print_json(report.to_dict())
    else:
        shown = audit_entries(report, everything=everything)
        now_s = system_runtime().now_s()
        print_table("Event wiring", AUDIT_COLUMNS, [_audit_row(entry, now_s) for entry in shown])
        console().print(f"\n{audit_summary(report)}.")
    if not report.ok:
        raise click.exceptions.Exit(EXIT_FAULTS)


def _audit_row(entry: AuditEntry, now_s: float) -> tuple[str, ...]:
    times = (entry.seen.sent_s, entry.seen.received_s)
    ago = [NOTHING if at_s is None else f"{duration(now_s - at_s)} ago" for at_s in times]
    return (entry.state.value, entry.name, *ago, entry.reason)


def _point_out(name: str) -> None:
    """An event that is in no catalog may be one of the user's own; more often it is misspelt."""
    if any(is_canonical(each) for each in delivered_as(name)):
        return
    near = get_close_matches(name.upper(), CATALOG, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    click.secho(f"ringrift: the catalog has no event {name!r}{hint}", fg="yellow", err=True)


async def _tail(names: Sequence[str], *, since_s: float, follow: bool, as_json: bool) -> None:
    runtime = system_runtime()
    wanted = [name for given in names for name in delivered_as(given)] or None
    async with (
        opened_engine() as engine,
        aclosing(_records(engine.events, runtime, wanted, since_s, follow=follow)) as records,
    ):
        async for record in records:
            click.echo(_as_json(record) if as_json else _as_line(record))


async def _records(
    log: EventLog, runtime: Runtime, types: list[str] | None, since_s: float, *, follow: bool
) -> AsyncGenerator[LogRecord, None]:
    after = await log.seq_at(since_s=runtime.now_s() - since_s)
    while True:
        # Taken before reading, so that nothing that comes meanwhile is skipped. With a filter the position
        # then moves on to it, or waiting would return at once for ever.
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
    # milliseconds are enough to tell the order
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
