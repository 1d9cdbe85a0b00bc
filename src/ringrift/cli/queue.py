"""`ringrift queue`: the work that waits, runs, failed for good; and what a person may do about it."""

from __future__ import annotations

from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, change_engine
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import NOTHING, clock, count, duration, stage_title
from ringrift.engine.ports import Engine, WorkItem, WorkState
from ringrift.errors import ConfigError
from ringrift.runtime import system_runtime

ALL = "all"
LISTED = 200
REVIVED_MAX = 10_000
ERROR_CHARS = 100

one_item = click.argument("item", help="The item's id.")


@click.group(invoke_without_command=True)
@as_json
@on_data_folder
@click.pass_context
def queue(context: click.Context, as_json: bool) -> None:
    """The work queue. Without a command: how many items of each kind are in which state."""
    if context.invoked_subcommand is not None:
        return
    with plain_errors():
        counts = ask_engine(_counts)
    if as_json:
        print_json(counts)
        return
    states = [state.value for state in WorkState]
    rows = [
        [stage_title(kind), *(count(of[s]) if of.get(s) else "·" for s in states)]
        for kind, of in counts.items()
    ]
    if not rows:
        console().print("The queue is empty.")
        return
    print_table("Queue", ("kind", *states), rows)


@queue.command("list")
@as_json
@on_data_folder
def list_items(as_json: bool) -> None:
    """List what runs at this moment: item, worker, lease."""
    with plain_errors():
        items = ask_engine(lambda engine: engine.queue.claimed(limit=LISTED))
        now_s = system_runtime().now_s()
    if as_json:
        print_json([_document(item) for item in items])
        return
    if not items:
        console().print("Nothing runs at this moment.")
        return
    rows = [
        (
            item.id,
            stage_title(item.kind),
            item.holder or NOTHING,
            f"{item.attempts} of {item.attempts_max}",
            duration((item.lease_until_s or now_s) - now_s),
        )
        for item in items
    ]
    print_table("Running", ("item", "kind", "worker", "attempt", "lease"), rows)


@queue.command("dead")
@as_json
@on_data_folder
def dead(as_json: bool) -> None:
    """List the items that failed for good, newest first."""
    with plain_errors():
        items = ask_engine(lambda engine: engine.queue.dead(limit=LISTED))
    if as_json:
        print_json([_document(item) for item in items])
        return
    if not items:
        console().print("No item has failed for good.")
        return
    rows = [
        (
            item.id,
            stage_title(item.kind),
            clock(item.changed_s, with_date=True),
            str(item.attempts),
            _one_line(item.error),
        )
        for item in items
    ]
    print_table("Dead", ("item", "kind", "since", "attempts", "error"), rows)


@queue.command("show")
@one_item
@on_data_folder
def show(item: str) -> None:
    """Print everything that is known of one item."""
    with plain_errors():
        print_json(_document(ask_engine(lambda engine: _find(engine, item))))


@queue.command("revive")
@click.argument("item", help="The item's id, or 'all' dead ones.")
@on_data_folder
def revive(item: str) -> None:
    """Give an item that failed for good a fresh set of attempts."""
    with plain_errors():
        revived = change_engine(lambda engine: _revive(engine, item))
    console().print(f"{len(revived)} revived.")


@queue.command("cancel")
@one_item
@click.option("--reason", default="cancelled by a person", show_default=True, help="Noted with the item.")
@on_data_folder
def cancel(item: str, reason: str) -> None:
    """Cancel an item that has not ended; its worker stops at its next report."""
    with plain_errors():
        change_engine(lambda engine: _cancel(engine, item, reason))
    console().print(f"{item} is cancelled.", markup=False)


async def _counts(engine: Engine) -> dict[str, dict[str, int]]:
    counts = await engine.queue.counts()
    return {kind: {state.value: number for state, number in of.items()} for kind, of in counts.items()}


async def _find(engine: Engine, item_id: str) -> WorkItem:
    found = await engine.queue.get(item_id)
    if found is None:
        raise ConfigError(f"no item {item_id!r}; `ringrift queue list` and `ringrift queue dead` show ids")
    return found


async def _revive(engine: Engine, item_id: str) -> list[str]:
    if item_id == ALL:
        ids = [item.id for item in await engine.queue.dead(limit=REVIVED_MAX)]
    else:
        found = await _find(engine, item_id)
        if found.state is not WorkState.DEAD:
            raise ConfigError(f"{item_id} is {found.state}; only a dead item can be revived")
        ids = [item_id]
    for each in ids:
        await engine.queue.revive(each)
    return ids


async def _cancel(engine: Engine, item_id: str, reason: str) -> None:
    found = await _find(engine, item_id)
    if not await engine.queue.cancel(item_id, reason=reason):
        raise ConfigError(f"{item_id} is {found.state} already")


def _document(item: WorkItem) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__dataclass_fields__}


def _one_line(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= ERROR_CHARS else f"{line[: ERROR_CHARS - 1]}…"
