"""`ringrift events dlq`: dead letters, seen and settled by a person."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from ringrift.cli.terminal import console, plain_errors, print_json, print_table
from ringrift.errors import ConfigError
from ringrift.events.dead_letters import DeadLetterQueue, FailedEvent
from ringrift.settings import get_settings

ALL = "all"
LISTED = 200

dead_letter_app = typer.Typer(no_args_is_help=True, help="Events that a subscription could not handle.")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Letter = Annotated[str, typer.Argument(help="The letter's id, or its first characters.")]
Letters = Annotated[str, typer.Argument(help="A letter's id, its first characters, or 'all'.")]


@dead_letter_app.command("list")
def list_letters(
    as_json: AsJson = False,
    everything: Annotated[bool, typer.Option("--all", help="Also recovered and abandoned ones.")] = False,
) -> None:
    """List the letters that wait, newest first."""
    with _letters() as queue:
        letters = [] if queue is None else queue.get_failed_events(LISTED, include_abandoned=everything)
        stats = {} if queue is None else queue.get_stats()
    if as_json:
        print_json({"letters": letters, "stats": stats})
        return
    columns = ("id", "status", "event", "subscription", "tries", "since", "error")
    keys = ("event_id", "status", "event_type", "handler_name", "retry_count", "created_at", "error")
    print_table("Dead letters", columns, [[str(row[key]) for key in keys] for row in letters])
    counts = ", ".join(f"{stats.get(name, 0)} {name}" for name in ("pending", "recovered", "abandoned"))
    console().print(f"\n{counts}.")


@dead_letter_app.command("show")
def show(letter: Letter) -> None:
    """Print one letter with its payload and error."""
    with _letters() as queue:
        print_json(_find(queue, letter).to_dict())


@dead_letter_app.command("retry")
def retry(letter: Letters) -> None:
    """Have a letter (or all) retried now, by the process that has its subscription."""
    with _letters() as queue:
        chosen = _chosen(queue, letter)
        due = [found for found in chosen if queue is not None and queue.make_due(found.event_id)]
    console().print(
        f"{len(due)} of {len(chosen)} due now; the running process retries them in its next round."
    )


@dead_letter_app.command("drop")
def drop(letter: Letters, yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False) -> None:
    """Delete a letter (or all) for good."""
    with _letters() as queue:
        chosen = _chosen(queue, letter)
        if not yes:
            typer.confirm(f"Delete {len(chosen)} letters for good?", abort=True)
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
