"""`ringrift workers`: what each worker brought and how its games compared; setting one aside by hand."""

from __future__ import annotations

import click
import msgspec

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.recall import tell_taken_in
from ringrift.cli.recall_acts import read_states, require_worker, through_the_writer
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import clock, count
from ringrift.engine.ports import Engine, KeyValue
from ringrift.errors import ConfigError
from ringrift.learning.facts import WorkerResumed, WorkerSetAside
from ringrift.learning.ledger import Ledger
from ringrift.learning.recomputation import BY_PERSON
from ringrift.learning.rules import configured_rules
from ringrift.learning.run_status import WorkerStatus
from ringrift.learning.standing_requests import Request, StandingRequests, changes_standing
from ringrift.learning.status_view import worker_statistics
from ringrift.runtime import system_runtime
from ringrift.settings import get_settings
from ringrift.work.worker_records import live_workers

COLUMNS = ("worker", "node", "jobs", "games", "rows", "refused", "compared", "faults", "disputed", "")
why = click.option("--reason", default="", help="Why; kept for ever.")
name = click.argument("worker", metavar="NAME")


@click.group(invoke_without_command=True)
@as_json
@on_data_folder
@click.pass_context
def workers(context: click.Context, as_json: bool) -> None:
    """What each worker brought, how its games compared when they were searched again, who is set aside."""
    if context.invoked_subcommand is not None:
        return
    with plain_errors():
        found = ask_engine(_statistics)
    if as_json:
        print_json([msgspec.to_builtins(each) for each in found])
    else:
        print_workers(found)


@workers.command("set-aside")
@name
@why
@as_json
@on_data_folder
def set_aside(worker: str, reason: str, as_json: bool) -> None:
    """Give a worker no more work; its games stay until they are recalled."""
    with plain_errors():
        _require_reason(reason)
        now_s = system_runtime().now_s()
        until_s = now_s + configured_rules(get_settings()).set_aside_s
        asked = WorkerSetAside(at_s=now_s, worker=worker, reason=reason, until_s=until_s, by=BY_PERSON)
        done = ask_engine(lambda engine: _make_fact(engine, asked))
    _tell(asked, done, f"{worker} gets no work until {clock(until_s, with_date=True)}", as_json)


@workers.command("resume")
@name
@why
@as_json
@on_data_folder
def resume(worker: str, reason: str, as_json: bool) -> None:
    """Give a worker that is set aside work again; its next games are compared at once."""
    with plain_errors():
        _require_reason(reason)
        asked = WorkerResumed(at_s=system_runtime().now_s(), worker=worker, reason=reason)
        done = ask_engine(lambda engine: _make_fact(engine, asked))
    _tell(asked, done, f"{worker} gets work again; its next games are compared at once", as_json)


def print_workers(found: tuple[WorkerStatus, ...]) -> None:
    """A table of all of them."""
    if not found:
        console().print("No worker has brought anything yet.")
        return
    print_table("", COLUMNS, [_row(each) for each in found])


def _row(each: WorkerStatus) -> tuple[str, ...]:
    told = []
    if (aside := each.set_aside) is not None:
        told.append(f"set aside until {clock(aside['until_s'], with_date=True)}: {aside['reason']}")
    if each.games_of_user_program:
        told.append(f"{count(each.games_of_user_program)} games of a program of your own: never compared")
    numbers = (each.jobs, each.games, each.rows, each.refused, each.compared, each.faults, each.disputed)
    return (each.name, each.node or "-", *map(count, numbers), "; ".join(told))


async def _statistics(engine: Engine) -> tuple[WorkerStatus, ...]:
    states, live = await read_states(engine.kv, None), await live_workers(engine.kv)
    return worker_statistics(states, live, system_runtime().now_s())


async def _make_fact(engine: Engine, asked: Request) -> bool:
    """Ask for it in every config; return whether it is a fact now."""
    runtime, requests = system_runtime(), StandingRequests(engine.kv)
    states = await read_states(engine.kv, None)
    await require_worker(engine.kv, states, asked.worker)
    if not any(changes_standing(state, asked, runtime.now_s()) for state in states):
        is_aside = isinstance(asked, WorkerSetAside)
        raise ConfigError(f"{asked.worker} is {'set aside already' if is_aside else 'not set aside'}")

    async def take_in(kv: KeyValue, ledger: Ledger) -> None:
        waiting, config = StandingRequests(kv), ledger.state.config
        for each in await waiting.waiting(config):
            if changes_standing(ledger.state, each, runtime.now_s()):
                await ledger.append(msgspec.structs.replace(each, at_s=runtime.now_s()))
            await waiting.remove(config, each)

    configs = [state.config for state in states]
    for config in configs:
        await requests.add(config, asked)
    return await through_the_writer(
        engine,
        configs,
        runtime,
        take_in=take_in,
        is_waiting=lambda config: requests.is_waiting(config, asked.worker),
    )


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("it needs its --reason: whoever finds it later has to understand it")


def _tell(asked: Request, done: bool, text: str, as_json: bool) -> None:
    if as_json:
        print_json({"worker": asked.worker, "reason": asked.reason, "done": done})
    else:
        tell_taken_in(done, text)
