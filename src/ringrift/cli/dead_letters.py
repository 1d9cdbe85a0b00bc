"""`ringrift events dlq`: dead letters, seen and settled by a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.errors import ConfigError
from ringrift.events.dead_letters import DeadLetterQueue, FailedEvent
from ringrift.settings import get_settings

ALL = "all"
LISTED = 200

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
