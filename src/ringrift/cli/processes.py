"""Who works in a run, how each is, and stopping one: `ringrift daemons` and `ringrift workers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
import msgspec

from ringrift.cli.command import as_json, has_run, on_data_folder, plain_errors, print_json
from ringrift.cli.control import running_status
from ringrift.cli.data_folder import ask_engine, change_engine
from ringrift.cli.format import clock, console, count, duration, print_table
from ringrift.cli.learning.recall import make_facts, read_states, require_worker, tell_taken_in
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import is_master_loop_running, read_master_loop
from ringrift.daemons.registry import PROFILES, DaemonSpec, product_registry, profile_types
from ringrift.daemons.requests import (
    ANSWER_S_MAX,
    DaemonRequest,
    DaemonRequests,
    DaemonVerb,
    require_daemon,
    what_it_means,
)
from ringrift.daemons.types import DaemonType
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError
from ringrift.health.run_status import WorkerStatus
from ringrift.learning.control_lease import control_holder
from ringrift.learning.facts.facts import WorkerResumed, WorkerSetAside
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.plan.trust import BY_PERSON
from ringrift.learning.requests import Request, StandingRequests, changes_standing
from ringrift.learning.status_view import worker_statistics
from ringrift.process_identity import user_name
from ringrift.runtime import system_runtime
from ringrift.work.worker.records import live_workers

# `ringrift daemons`: every daemon type, whether it can run here and how it is; stopping and starting one.
#
# A request goes through the store: the manager of the run carries it out, now or at its next start.


UNAVAILABLE, UNKNOWN, STOPPED, LEFT_OUT = "unavailable", "unknown", "stopped", "left out"

one_daemon = click.argument("name", help="The daemon's name, as `ringrift daemons` lists it.")
with_reason = click.option("--reason", default="", help="Shown to everybody who looks.")


@click.group(invoke_without_command=True)
@click.option("--available", is_flag=True, help="Leave out what cannot run yet.")
@as_json
@on_data_folder
@click.pass_context
def daemons(context: click.Context, available: bool, as_json: bool) -> None:
    """List all daemon types: state, capability, and why one is unavailable or stopped."""
    if context.invoked_subcommand is not None:
        return
    with plain_errors():
        status = running_status()
        runs = status is not None or is_master_loop_running()
        asked = ask_engine(lambda engine: DaemonRequests(engine.kv).all()) if has_run() else {}
        # Without an answer of a live run nothing is known; without a run, all of them are stopped.
        unseen = UNKNOWN if runs else STOPPED
        left_out = _left_out() if runs else {}
        rows = [_daemon_row(spec, status, asked, left_out, unseen=unseen) for spec in product_registry()]
    able, known = sum(row["available"] for row in rows), len(rows)
    if available:
        rows = [row for row in rows if row["available"]]
    if as_json:
        print_json({"control_process": runs, "daemons": {row["name"]: row for row in rows}})
        return
    shown = [(row["name"], row["state"], row["capability"], _said_of(row)) for row in rows]
    print_table("Daemons", ("daemon", "state", "capability", "what it does, or why it can't"), shown)
    where = ""
    if not runs:
        where = "; no control process runs here, start one with `ringrift run`"
    elif status is None:
        where = "; the control process answers no probes, for its health_server does not run"
    console().print(f"\n{able} of {known} can run in this version{where}.")


@daemons.command("stop")
@one_daemon
@with_reason
@as_json
@on_data_folder
def stop(name: str, reason: str, as_json: bool) -> None:
    """Stop a daemon of the run, until somebody starts it again; also over restarts of the run."""
    _ask_for(DaemonVerb.STOP, name, reason, as_json=as_json)


@daemons.command("start")
@one_daemon
@with_reason
@as_json
@on_data_folder
def start(name: str, reason: str, as_json: bool) -> None:
    """Start a daemon of the run, in this run and in those to come; ends a stop."""
    _ask_for(DaemonVerb.START, name, reason, as_json=as_json)


@daemons.command("restart")
@one_daemon
@with_reason
@as_json
@on_data_folder
def restart(name: str, reason: str, as_json: bool) -> None:
    """Stop a daemon of the run and start it again; ends a stop."""
    _ask_for(DaemonVerb.RESTART, name, reason, as_json=as_json)


def _ask_for(want: DaemonVerb, name: str, reason: str, *, as_json: bool) -> None:
    with plain_errors():
        daemon = require_daemon(name)
        # Refused here, since a stored request for what is not built would wait for ever.
        if unavailable := product_registry()[DaemonType(daemon)].unavailable_reason:
            raise ConfigError(f"{daemon} cannot be asked to {want}: {unavailable}")
        runs = is_master_loop_running() or ask_engine(_is_program_asked)
        if want is DaemonVerb.RESTART and not runs:
            want = DaemonVerb.START  # with the next run it starts afresh
        request = DaemonRequest(
            daemon=daemon, want=want, reason=reason, by=user_name(), at_s=system_runtime().now_s()
        )
        done = change_engine(lambda engine: _request(engine, request, runs=runs))
        means = _what_it_means(daemon, runs=runs) if done.holds_down else ""
    failed = runs and (done.done_s is None or bool(done.problem))
    already = done.holds_down and done.at_s < request.at_s
    if as_json:
        print_json({**msgspec.to_builtins(done), "running": runs, "means": means, "already": already})
    else:
        was = f"{daemon} is {_stopped(done)}; it was stopped already"
        console().print(was if already and not failed else _outcome(done, runs=runs), markup=False)
        if means:
            console().print(
                f"Without it: {means}. `ringrift daemons start {daemon}` ends this.", markup=False
            )
    if failed:
        raise click.exceptions.Exit(1)


async def _request(engine: Engine, request: DaemonRequest, *, runs: bool) -> DaemonRequest:
    """Store *request*; with a run alive, wait for its answer and return the request with it."""
    requests, name = DaemonRequests(engine.kv), request.daemon
    if runs:
        return await requests.answer(request, system_runtime())
    before, original = await requests.get(name), product_registry()[DaemonType(name)].deprecated_for
    # Nothing starts an alias by itself, so there is nothing to stop unless somebody has asked for its start.
    if original and request.holds_down and (before is None or before.want is DaemonVerb.STOP):
        same = f"{name} is {original} under another name"
        raise ConfigError(f"{same} and is not started; `ringrift daemons stop {original}` stops both")
    return await requests.ask(request)


async def _is_program_asked(engine: Engine) -> bool:
    """Whether a program that led by itself carries requests out still, though a person stopped its loop.

    While its loop runs it has the PID file, as a run has.
    """
    loops, holder = {"data_pipeline", "continuous_training_loop"}, await control_holder(engine.kv)
    if holder is None or holder.has_daemons or holder.is_dead(system_runtime()):
        return False
    stops = await DaemonRequests(engine.kv).stops()
    return any(stops[name].done_s is not None for name in loops & stops.keys())


def _what_it_means(name: str, *, runs: bool) -> str:
    """What is not done without a daemon that is stopped now, as things stand here."""
    stopped = ask_engine(lambda engine: DaemonRequests(engine.kv).stops())
    return what_it_means(name, {*stopped, *(_left_out() if runs else ())})


_DONE = {DaemonVerb.STOP: "is stopped", DaemonVerb.START: "is started", DaemonVerb.RESTART: "was restarted"}
_NEXT = {DaemonVerb.STOP: "stays stopped", DaemonVerb.START: "starts", DaemonVerb.RESTART: "starts"}


def _outcome(done: DaemonRequest, *, runs: bool) -> str:
    if not runs:
        return f"nothing runs here: {done.daemon} {_NEXT[done.want]} from the next `ringrift run` on"
    if done.done_s is None:
        return f"the run has not answered within {duration(ANSWER_S_MAX)}; the request is noted and stands"
    if done.problem:
        return f"{done.daemon} could not be asked to {done.want}: {done.problem}"
    return f"{done.daemon} {_DONE[done.want]}"


def _daemon_row(
    spec: DaemonSpec,
    status: dict[str, Any] | None,
    asked: Mapping[str, DaemonRequest],
    left_out: Mapping[str, str],
    *,
    unseen: str,
) -> dict[str, Any]:
    name = spec.daemon_type.value
    live = {} if status is None else status["daemons"].get(name, {})
    original = product_registry()[spec.deprecated_for] if spec.deprecated_for else None
    reason, request, error = spec.unavailable_reason, asked.get(name), live.get("last_error") or ""
    if original is not None and error.startswith("deprecated: "):  # how things stood when it was refused
        now = _daemon_row(original, status, asked, left_out, unseen=unseen)
        error = f"{now['name']} does the same and is {now['reason'] or now['state']}"
    stopped = _stopped(request) if request is not None and request.holds_down else ""
    state = live.get("state", unseen)
    asked_for = request is not None and not request.refused
    if not asked_for and not reason and name in left_out and state in (UNKNOWN, STOPPED):
        state, stopped = LEFT_OUT, left_out[name]  # nobody stopped it, and it needs no probe to be known
    return {
        "name": name,
        "state": UNAVAILABLE if reason else state,
        "available": not reason,
        "reason": reason or stopped or error,
        "request": None if request is None else msgspec.to_builtins(request),
        "capability": spec.capability,
        "about": spec.about,
        "deprecated_for": None if original is None else original.daemon_type.value,
        "profiles": sorted(spec.profiles),
        "depends_on": [item.value for item in spec.depends_on],
        "restart_count": live.get("restart_count", 0),
        "uptime_seconds": live.get("uptime_seconds", 0.0),
    }


def _said_of(row: Mapping[str, Any]) -> str:
    """What it does, or why it can't; an alias always says of what."""
    said, original = row["reason"] or row["about"], row["deprecated_for"]
    return f"{original} under another name; {said}" if original and original not in said else said


def _left_out() -> dict[str, str]:
    """The daemons that the running profile does not have, with these words."""
    loop = read_master_loop()
    if loop is None or loop.profile not in PROFILES:
        return {}
    wanted = set(profile_types(product_registry(), loop.profile))
    others = [spec.daemon_type for spec in product_registry() if spec.daemon_type not in wanted]
    return {each.value: f"the profile {loop.profile} does not have it" for each in others}


def _stopped(request: DaemonRequest) -> str:
    since = duration(system_runtime().now_s() - request.at_s)
    noted = "" if request.done_s is not None else " (from the next run on)"
    why = f": {request.reason}" if request.reason else ""
    return f"stopped by {request.by or 'a user'} {since} ago{noted}{why}"


# `ringrift workers`: what each worker brought and how its games compared; setting one aside by hand.


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
        # Also by hand only for a time: somebody who forgets it must not lose a worker for good.
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
    print_table("", COLUMNS, [_worker_row(each) for each in found])


def _worker_row(each: WorkerStatus) -> tuple[str, ...]:
    parts = []
    if (aside := each.set_aside) is not None:
        parts.append(f"set aside until {clock(aside['until_s'], with_date=True)}: {aside['reason']}")
    if each.games_of_user_program:
        parts.append(f"{count(each.games_of_user_program)} games of a program of your own: never compared")
    numbers = (each.jobs, each.games, each.rows, each.refused, each.compared, each.faults, each.disputed)
    return (each.name, each.node or "-", *map(count, numbers), "; ".join(parts))


async def _statistics(engine: Engine) -> tuple[WorkerStatus, ...]:
    states, live = await read_states(engine.kv, None), await live_workers(engine.kv)
    return worker_statistics(states, live, system_runtime().now_s())


async def _make_fact(engine: Engine, asked: Request) -> bool:
    """Ask for it in every config; return whether it is a fact now."""
    runtime, states = system_runtime(), await read_states(engine.kv, None)
    # A misspelled name would be kept as a fact for ever.
    await require_worker(engine.kv, states, asked.worker)
    if not any(changes_standing(state, asked, runtime.now_s()) for state in states):
        is_aside = isinstance(asked, WorkerSetAside)
        raise ConfigError(f"{asked.worker} is {'set aside already' if is_aside else 'not set aside'}")
    return await make_facts(
        engine,
        [state.config for state in states],
        runtime,
        asked,
        requests=StandingRequests,
        name=asked.worker,
        is_new=lambda state, each: changes_standing(state, each, runtime.now_s()),
    )


def _require_reason(reason: str) -> None:
    if not reason.strip():
        raise ConfigError("it needs its --reason: whoever finds it later has to understand it")


def _tell(asked: Request, done: bool, text: str, as_json: bool) -> None:
    if as_json:
        print_json({"worker": asked.worker, "reason": asked.reason, "done": done})
    else:
        tell_taken_in(done, text)
