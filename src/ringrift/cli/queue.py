"""`ringrift queue`: the work that waits, runs, failed for good; and what a person may do about it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import click

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, change_engine
from ringrift.cli.known_configs import require_config
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import NOTHING, clock, count, duration, stage_title
from ringrift.engine.ports import Engine, WorkItem, WorkState
from ringrift.errors import ConfigError
from ringrift.learning.pauses import ALL, Pauses, ReadPauses
from ringrift.runtime import system_runtime
from ringrift.work.worker_records import WorkerRecord, live_workers, own_capability

EVERY = "all"
LISTED = 200
LIMIT_MAX = 100_000
STATES = WAITING, RUNNING, FAILED = "waiting", "running", "failed"
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
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only these; may be given repeatedly."
)
@click.option("--config", help="Only work of this config.")
@click.option("--kind", help="Only work of this kind, such as selfplay or train.")
@click.option(
    "--limit",
    type=click.IntRange(1, LIMIT_MAX),
    default=LISTED,
    show_default=True,
    help="How many items of each state.",
)
@as_json
@on_data_folder
def list_items(
    states: tuple[str, ...], config: str | None, kind: str | None, limit: int, as_json: bool
) -> None:
    """List what waits and why, what runs and where, and what failed for good, newest first."""
    with plain_errors():
        chosen = Chosen(states or STATES, config, kind, limit)
        lines, more = ask_engine(lambda engine: _listed(engine, chosen))
    if as_json:
        print_json([line.document() for line in lines])
    elif not lines:
        console().print(
            f"Nothing runs, waits or has failed{'' if chosen.is_all else ' of what was asked for'}."
        )
    else:
        columns = ("item", "state", "kind", "config", "priority", "age", "why, or where")
        print_table("Queue", columns, [line.row() for line in lines])
    if more:
        click.echo(f"ringrift: {' and '.join(more)}; --limit shows more", err=True)


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


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be listed."""

    states: Collection[str]
    config: str | None
    kind: str | None
    limit: int

    @property
    def is_all(self) -> bool:
        return self.config is None and self.kind is None and set(self.states) == set(STATES)

    def has(self, item: WorkItem) -> bool:
        return self.config in (None, item.group) and self.kind in (None, item.kind)


@dataclass(frozen=True, slots=True)
class ListedItem:
    """One item as it is listed."""

    item: WorkItem
    state: str
    why: str
    age_s: float

    def row(self) -> tuple[str, ...]:
        item = self.item
        age = duration(self.age_s)
        return (
            item.id,
            self.state,
            stage_title(item.kind),
            item.group or NOTHING,
            str(item.priority),
            age,
            self.why,
        )

    def document(self) -> dict[str, Any]:
        listed = {"listed": self.state, "config": self.item.group, "age_s": self.age_s, "why": self.why}
        return _document(self.item) | listed


async def _listed(engine: Engine, chosen: Chosen) -> tuple[list[ListedItem], list[str]]:
    """The lines, and in words how much was left out."""
    queue, now_s = engine.queue, system_runtime().now_s()
    # One more than is shown tells whether there are more; with a filter, what it leaves out is read, too.
    reach = chosen.limit + 1 if chosen.config is None and chosen.kind is None else LIMIT_MAX
    found: dict[str, list[WorkItem]] = {state: [] for state in chosen.states}
    if WAITING in found:
        found[WAITING] += await queue.ready(limit=reach)
        found[WAITING] += await queue.delayed(limit=reach)
        found[WAITING] += await queue.blocked(limit=reach)
    if RUNNING in found:
        found[RUNNING] += await queue.claimed(limit=reach)
    if FAILED in found:
        found[FAILED] += await queue.dead(limit=reach)
    groups = {item.group for items in found.values() for item in items}
    if chosen.config is not None and chosen.config not in groups:
        await require_config(engine.kv, chosen.config)
    reasons = Reasons(await Pauses(engine.kv).read(), await live_workers(engine.kv), now_s)
    lines, more = list[ListedItem](), list[str]()
    for state in STATES:
        of_state = [item for item in found.get(state, ()) if chosen.has(item)]
        lines += [reasons.line(item, state) for item in of_state[: chosen.limit]]
        if len(of_state) > chosen.limit:
            more.append(f"more items are {state} than the {chosen.limit} listed")
        elif len(found.get(state, ())) >= LIMIT_MAX:
            more.append(f"only the first {LIMIT_MAX:,} that are {state} were looked at")
    return lines, more


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why work waits, from what stands in the store."""

    pauses: ReadPauses
    workers: Sequence[WorkerRecord]
    now_s: float

    def line(self, item: WorkItem, state: str) -> ListedItem:
        if state == RUNNING:
            left = duration((item.lease_until_s or self.now_s) - self.now_s)
            attempt = f"attempt {item.attempts} of {item.attempts_max}, lease {left}"
            return ListedItem(item, state, f"on {item.holder}: {attempt}", self.now_s - item.changed_s)
        if state == FAILED:
            return ListedItem(item, state, _one_line(item.error), self.now_s - item.changed_s)
        return ListedItem(item, state, self.why_waiting(item), self.now_s - item.added_s)

    def why_waiting(self, item: WorkItem) -> str:
        """The reason that lasts longest first: a person's, then other work, time, and who could do it."""
        whole = self.pauses.of(ALL)
        if (pause := self.pauses.of(item.group or ALL)) is not None:
            what = "the run" if whole is not None else item.group
            return f"paused: {what}, {pause.why}"
        if item.waits_for:
            return f"needs {', '.join(item.waits_for)}"
        if item.not_before_s is not None:
            after = f", after: {_one_line(item.error)}" if item.error else ""
            return f"not for {duration(item.not_before_s - self.now_s)} more{after}"
        if lacking := self._lacking(item):
            return lacking
        return "for a worker that is free"

    def _lacking(self, item: WorkItem) -> str:
        """Why no worker that lives could take it; empty if one could."""
        if not self.workers:
            return "no worker is running"
        there = [each for each in self.workers if item.node in (None, each.node)]
        if not there:
            return f"only {item.node} may do it, and no worker runs there"
        able = [each for each in there if item.requires <= {*each.capabilities, own_capability(each.name)}]
        if not able:
            return f"no worker has what it requires: {', '.join(sorted(item.requires))}"
        doing = [each for each in able if each.kinds is None or item.kind in each.kinds]
        if not doing:
            return f"no worker does work of the kind {item.kind}"
        if all(each.set_aside for each in doing):
            return "every worker that could do it is set aside"
        return ""


async def _counts(engine: Engine) -> dict[str, dict[str, int]]:
    counts = await engine.queue.counts()
    return {kind: {state.value: number for state, number in of.items()} for kind, of in counts.items()}


async def _find(engine: Engine, item_id: str) -> WorkItem:
    found = await engine.queue.get(item_id)
    if found is None:
        raise ConfigError(f"no item {item_id!r}; `ringrift queue list` and `ringrift queue dead` show ids")
    return found


async def _revive(engine: Engine, item_id: str) -> list[str]:
    if item_id == EVERY:
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
    fields = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return fields | {"requires": sorted(item.requires)}


def _one_line(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= ERROR_CHARS else f"{line[: ERROR_CHARS - 1]}…"
