"""Steering a run from another terminal: `ringrift link`, `pause`, `resume`, `stop` and `queue`."""

from __future__ import annotations

import asyncio
import os
import signal
import urllib.request
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

import click
import msgspec

from ringrift.cli.command import as_json, check_data_folder, on_data_folder, plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, change_engine, require_config
from ringrift.cli.format import (
    NOTHING,
    clock,
    console,
    count,
    duration,
    parse_duration,
    print_table,
    stage_title,
)
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import MasterLoop, read_master_loop
from ringrift.coordination.safeguards import get_emergency_stop
from ringrift.decoding import decode_as
from ringrift.engine.lock_files import OWN_PROGRAM
from ringrift.engine.ports import Engine, WorkItem, WorkState
from ringrift.engine.work_rules import TASKS_WORK
from ringrift.errors import ConfigError, Unavailable
from ringrift.health.run_status import Address, read_address
from ringrift.learning.requests import ALL, Pauses, ReadPauses
from ringrift.process_identity import user_name
from ringrift.redaction import loaded_secret
from ringrift.runtime import Runtime, system_runtime
from ringrift.tls import own_files
from ringrift.web.access import CODE_S, TOKEN_FILE
from ringrift.work.limits import Pause
from ringrift.work.worker.records import WorkerRecord, live_workers, own_capability

# Asking the control process that runs on this machine, if one does, and the link to its page.


ANSWER_S_MAX = 5.0  # the server answers from a thread of its own, also while the control loop is blocked


@click.command()
@as_json
@on_data_folder
def link(as_json: bool) -> None:
    """Print a link to the live page that may also act: good once, for ten minutes."""
    with plain_errors():
        check_data_folder()
        address = read_address(get_settings().coordination_dir)
        if address is None:
            raise Unavailable(f"nothing runs in {get_settings().data_dir}; `ringrift run` prints a link, too")
        url = page_link(address)
    if as_json:
        print_json({"url": url, "good_for_s": CODE_S})
    else:
        console().print(url, markup=False, highlight=False, soft_wrap=True)


def page_link(address: Address) -> str:
    """A link that brings the page its key, once."""
    made = _ask(address, "/link", body=b"")
    # Behind the number sign, which no browser sends anywhere: neither a log nor a referrer has it.
    return f"{address.url}/#enter={made['code']}"


def running_status() -> dict[str, Any] | None:
    """Return the status of the running control process; None if none runs on this data folder."""
    address = read_address(get_settings().coordination_dir)
    return None if address is None else _ask(address, "/status")


def _ask(address: Address, path: str, *, body: bytes | None = None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {_token(get_settings().data_dir / TOKEN_FILE)}"}
    request = urllib.request.Request(f"{address.url}{path}", data=body, headers=headers)
    try:
        with _opener(address).open(request, timeout=ANSWER_S_MAX) as answer:
            found: dict[str, Any] = decode_as(answer.read(), dict)
    except HTTPError as error:
        raise ConfigError(f"{address.url} refused {path} ({error.code} {error.reason})") from None
    except (URLError, TimeoutError, ConnectionError, msgspec.DecodeError) as error:
        raise Unavailable(
            f"process {address.pid} should answer on {address.url} and does not ({error})"
        ) from None
    return found


def _opener(address: Address) -> urllib.request.OpenerDirector:
    """Asks this machine directly, as a proxy would see the token; over TLS only the run's own certificate."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if address.url.startswith("https:"):
        files = own_files(get_settings(), system_runtime())
        handlers.append(urllib.request.HTTPSHandler(context=files.client_context()))
    return urllib.request.build_opener(*handlers)


def _token(path: Path) -> str:
    try:
        return loaded_secret(path.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return ""  # a run of an earlier version, which has none
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


# `ringrift pause`, `resume` and `stop`: what people want of a run, said from another terminal.


LOOK_EVERY_S = 0.2  # a person waits; asking for a process costs next to nothing
TELL_EVERY_S = 5.0  # so that a stop that takes long does not look as if nothing happened

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
        # Not asked over HTTP: a run whose server is down must be stoppable, too.
        loop = read_master_loop()
        if loop is not None and loop.is_alive and loop.profile == OWN_PROGRAM:
            raise ConfigError(
                f"process {loop.pid} is a program that learns here by itself, no run: end it there"
            )
        if loop is None or not loop.is_alive:
            where = get_settings().data_dir
            _tell({"stopped": False, "pid": None}, as_json, f"nothing runs in {where}")
            return
        took_s = asyncio.run(_end(loop, limit_s=limit_s, quiet=as_json, runtime=system_runtime()))
    text = f"process {loop.pid} stopped after {duration(took_s)}; `ringrift run` goes on where it was"
    _tell({"stopped": True, "pid": loop.pid, "took_s": took_s}, as_json, text)


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
    # A config that is resumed alone still stands while the whole run is paused: the answer says so.
    whole = await pauses.get(ALL) or await pauses.get(TASKS_WORK)
    # An emergency stop is somebody else's decision: a plain resume must not end it in passing.
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


async def _end(loop: MasterLoop, *, limit_s: float, quiet: bool, runtime: Runtime) -> float:
    """Ask with SIGTERM and wait; returns the seconds it took. Raises `Unavailable` if it stays."""
    try:
        os.kill(loop.pid, signal.SIGTERM)
    except ProcessLookupError:
        return 0.0
    except PermissionError:
        raise ConfigError(f"process {loop.pid} belongs to another user; only they can stop it") from None
    began_s = reported_s = runtime.monotonic_s()
    while loop.is_alive:
        now_s = runtime.monotonic_s()
        if now_s - began_s > limit_s:
            raise Unavailable(
                f"process {loop.pid} was asked to stop and has not after {duration(limit_s)}",
                retry_after_s=10,
            )
        if now_s - reported_s >= TELL_EVERY_S and not quiet:
            reported_s = now_s
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


# `ringrift queue`: the work that waits, runs, failed for good; and what a person may do about it.


EVERY = "all"
LISTED = 200  # some screens; the newest are what somebody looks for
LIMIT_MAX = 100_000  # items; more than anybody reads, and memory for them is bounded
STATES = WAITING, RUNNING, FAILED = "waiting", "running", "failed"
REVIVED_MAX = 10_000  # in one command; a second one takes the next
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
    # Work of a config that was removed from the run is still listed; only a name that is nowhere is
    # refused.
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
            # A pause of the run covers its configs: `of` a group answers with it as well.
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
        # Each step leaves fewer workers, so that the first empty one names what is really lacking.
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
        # The ids first: reviving changes what is dead while one would still read it.
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
    # `asdict` would copy payload and result, which may be large.
    fields = {name: getattr(item, name) for name in item.__dataclass_fields__}
    return fields | {"requires": sorted(item.requires)}


def _one_line(text: str | None) -> str:
    line = " ".join((text or "").split())
    return line if len(line) <= ERROR_CHARS else f"{line[: ERROR_CHARS - 1]}…"
