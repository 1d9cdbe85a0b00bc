"""`ringrift events`: look them up, watch them, check their wiring, look after dead letters."""

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
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.dead_letter_queue import DeadLetterQueue, FailedEvent
from ringrift.coordination.wiring_audit import audit_wiring
from ringrift.engine.ports import EventLog, LogRecord
from ringrift.errors import ConfigError
from ringrift.events.catalog.audit import AuditEntry, audit_entries, audit_summary, seen_in_folder
from ringrift.events.catalog.names import delivered_as, is_canonical
from ringrift.events.catalog.table import ALIASES, CATALOG, EventSpec
from ringrift.events.event import decode_body
from ringrift.runtime import Runtime, system_runtime

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
    """Look events up, watch them, check their wiring, repair."""


@events.command("list")
@click.argument("category", required=False, metavar="[CATEGORY]")
@as_json
def list_events(category: str | None, as_json: bool) -> None:
    """List the events of the catalog, or those of one category."""
    with plain_errors():
        specs = [spec for spec in CATALOG.values() if category in (None, spec.category)]
        if not specs:
            raise ConfigError(f"there is no category {category!r}; there are: {', '.join(_categories())}")
    if as_json:
        print_json({"events": [_described(spec) for spec in specs]})
        return
    rows = [(spec.category, spec.name, spec.severity, _reach(spec)) for spec in specs]
    print_table("Events", ("category", "event", "severity", "goes to"), sorted(rows))
    console().print(f"\n{len(rows)} events; `ringrift events show EVENT` tells the fields of one.")


@events.command("show")
@click.argument("event")
@as_json
@on_data_folder
def show_event(event: str, as_json: bool) -> None:
    """Tell what an event says, by which names, who really sends it and who hears it."""
    with plain_errors():
        spec = _spec_of(event)
        seen = ask_engine(seen_in_folder) if has_run() else {}
        entry = next(each for each in audit_wiring(seen).events if each.name == spec.name)
    if as_json:
        print_json({**_described(spec), **entry.to_dict()})
        return
    console().print(f"[bold]{spec.name}[/bold]  {spec.category}, {spec.severity}, {_reach(spec)}")
    for label, text in _lines(spec, entry):
        console().print(f"  {label:<12} {text}", markup=False)
    fields = [
        (item.name, item.type, "yes" if item.required else "", ", ".join(_also(spec, item.name)))
        for item in spec.fields
    ]
    print_table("\nFields", ("field", "type", "needed", "also taken from"), fields)


def _categories() -> list[str]:
    return sorted({spec.category for spec in CATALOG.values()})


def _spec_of(event: str) -> EventSpec:
    """The event of that name, wire value or other name, in any case."""
    found = next((CATALOG[name] for name in delivered_as(event) if name in CATALOG), None)
    if found is None:
        raise ConfigError(_unknown(event))
    return found


def _described(spec: EventSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "value": spec.value,
        "category": spec.category,
        "severity": spec.severity,
        "crosses_processes": spec.crosses,
        "high_impact": spec.high_impact,
        "other_names": _other_names(spec),
        "when": spec.emitted_when,
        "note": spec.note,
        "fields": [
            {
                "name": item.name,
                "type": item.type,
                "required": item.required,
                "also": _also(spec, item.name),
            }
            for item in spec.fields
        ],
    }


def _lines(spec: EventSpec, entry: AuditEntry) -> Iterator[tuple[str, str]]:
    yield "wire value", spec.value
    if others := _other_names(spec):
        yield "also named", ", ".join(others)
    if failures := sorted(alias.alias for alias in ALIASES.values() if alias.when_failed == spec.name):
        yield "also", f"a failed {', '.join(failures)}"
    if spec.emitted_when:
        yield "sent", spec.emitted_when
    yield "sent by", ", ".join(entry.emitters) or entry.reason
    yield "heard by", ", ".join(entry.subscribers) or entry.reason
    sent, received = _audit_row(entry, system_runtime().now_s())[2:4]
    yield "seen here", f"sent {sent}, received {received}"
    if spec.note:
        yield "note", spec.note


def _reach(spec: EventSpec) -> str:
    return "every process" if spec.crosses else "its own process"


def _other_names(spec: EventSpec) -> list[str]:
    return sorted(alias.alias for alias in ALIASES.values() if alias.canonical == spec.name)


def _also(spec: EventSpec, field: str) -> list[str]:
    return [alias for alias, name in spec.field_aliases.items() if name == field]


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
        seen = ask_engine(seen_in_folder) if has_run() else {}
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
    """An event that is in no catalog may be one of the user's own; more often it is misspelled."""
    if any(is_canonical(each) for each in delivered_as(name)):
        return
    click.secho(f"ringrift: {_unknown(name)}", fg="yellow", err=True)


def _unknown(name: str) -> str:
    near = get_close_matches(name.upper(), CATALOG, n=1)
    hint = f"; did you mean {near[0]}?" if near else "; `ringrift events list` shows all"
    return f"the catalog has no event {name!r}{hint}"


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
