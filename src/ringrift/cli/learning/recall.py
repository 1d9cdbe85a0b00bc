"""`ringrift recall`: games that are not to be trusted leave a run; what that touches is shown first."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any

import click
import msgspec

from ringrift.cli.command import as_json, on_data_folder, plain_errors, print_json
from ringrift.cli.data_folder import ask_engine, configs_of, require_config
from ringrift.cli.format import NOTHING, brief, clock, console, count, parse_moment, print_table
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import MasterLoopGuard, is_master_loop_running
from ringrift.engine.ports import Engine, KeyValue
from ringrift.errors import ConfigError, Conflict
from ringrift.learning.control_lease import in_control
from ringrift.learning.facts.facts import Recalled
from ringrift.learning.facts.ledger import Ledger
from ringrift.learning.facts.state import ConfigState
from ringrift.learning.plan.rules import configured_rules
from ringrift.learning.plan.trust import RecallEffect, TouchedModel, known_workers, recall_effect
from ringrift.learning.requests import RecallRequests, Request, StandingRequests, is_new
from ringrift.runtime import Runtime, system_runtime
from ringrift.work.worker.records import live_workers

# A recall and what it touches, in words and tables.


SHARDS_SHOWN = 20
HOW = {
    "recalled": "is recalled itself",
    "trained": "was trained on these games",
    "descends": "descends from such a model",
}


def covered_in_words(recall: Recalled) -> str:
    parts = []
    if recall.worker is not None:
        parts.append(f"brought by {recall.worker}")
    if recall.model is not None:
        parts.append(f"played by model {brief(recall.model)}")
    if recall.from_s is not None:
        parts.append(f"from {clock(recall.from_s, with_date=True)} on")
    if recall.until_s is not None:
        parts.append(f"before {clock(recall.until_s, with_date=True)}")
    return "games " + ", ".join(parts)


def effect_as_json(effect: RecallEffect) -> dict[str, Any]:
    report: dict[str, Any] = msgspec.to_builtins(effect)
    return {**report, "games": effect.games, "rows": effect.rows}


def print_effect(effect: RecallEffect) -> None:
    """One config: games by shard, matches, models, the champion."""
    say = console().print
    if effect.is_empty:
        say(f"{effect.config}: none of its games so far", markup=False)
        return
    played = sum(match.games for match in effect.matches)
    say(
        f"{effect.config}: {count(effect.games)} games with {count(effect.rows)} rows "
        f"in {len(effect.shards)} shards, {played} games of {len(effect.matches)} matches",
        markup=False,
    )
    if effect.shards:
        _print_shards(effect)
    if effect.models:
        rows = [_model_row(model) for model in effect.models]
        print_table("  Models", ("  model", "digest", "state", "how", "rows of these"), rows)
    for model in effect.promotions:
        say(f"  The promotion of {brief(model)} stands on games among them.", markup=False)
    if effect.champion_is == "recalled":
        say("  The champion is recalled: its predecessor takes its place.")
    elif effect.champion_is and effect.successor is None:
        say(f"  The champion {HOW[effect.champion_is]}; it stays, for there is none before it without them.")
    elif effect.champion_is:
        then = f"{brief(effect.successor)} takes its place (unless recalled_models is list)"
        say(f"  The champion {HOW[effect.champion_is]}: {then}.", markup=False)
    say("")


def _print_shards(effect: RecallEffect) -> None:
    rows = [
        (
            f"  {brief(shard.shard)}",
            shard.worker,
            brief(shard.model) if shard.model else NOTHING,
            clock(shard.made_s, with_date=True),
            shard.state,
            count(shard.games),
            count(shard.rows),
        )
        for shard in effect.shards[:SHARDS_SHOWN]
    ]
    print_table("  Shards", ("  shard", "worker", "model", "made", "state", "games", "rows"), rows)
    if len(effect.shards) > SHARDS_SHOWN:
        console().print(f"  and {len(effect.shards) - SHARDS_SHOWN} more; --json lists all")


def _model_row(model: TouchedModel) -> tuple[str, ...]:
    star = " *" if model.is_champion else ""
    return (f"  {model.number}{star}", brief(model.model), model.state, HOW[model.how], count(model.rows))


# What `ringrift recall` does in a data folder: look, ask for a recall, and see it become a fact.


TAKEN_IN_S_MAX = 15.0  # the control process plans every two seconds, or as soon as a long pass is over
LOOK_EVERY_S = 0.2
ID_DIGITS = 8
NAMES_SHOWN = 20


async def read_states(kv: KeyValue, config: str | None) -> list[ConfigState]:
    """What is known of *config*, or of all configs of the folder."""
    wanted = await configs_of(kv) if config is None else (await require_config(kv, config),)
    bucket = configured_rules(get_settings()).bucket
    return [(await Ledger.open(kv, each, bucket_rules=bucket)).state for each in wanted]


async def require_worker(kv: KeyValue, states: Sequence[ConfigState], worker: str) -> str:
    """Return *worker*; `ConfigError` that lists those there are if nobody of that name was ever here."""
    known = sorted({*known_workers(states), *(each.name for each in await live_workers(kv))})
    if worker in known:
        return worker
    text = f"there are {_listed(known)}" if known else "no worker has brought anything yet"
    raise ConfigError(f"no worker is called {worker!r}; {text}")


def require_model(states: Sequence[ConfigState], text: str) -> str:
    """The digest of the model that begins so, or has that number where there is one config."""
    models = [(state.config, model) for state in states for model in state.models.values()]
    found = {model.digest for _, model in models if model.digest.startswith(text)}
    if not found and len(states) == 1:
        found = {model.digest for _, model in models if str(model.number) == text}
    if len(found) == 1:
        return found.pop()
    known = [f"{model.digest[:12]} ({config} {model.number})" for config, model in models]
    message = f"there are {_listed(known)}" if known else "no model has been trained yet"
    what = f"{len(found)} models are" if found else "no model is"
    raise ConfigError(f"{what} called {text!r}; {message}")


def new_recall_id(recall: Recalled) -> str:
    """A short name that the same recall at the same moment gets again."""
    return f"r{hashlib.sha256(msgspec.json.encode(recall)).hexdigest()[:ID_DIGITS]}"


async def make_fact(engine: Engine, recall: Recalled, configs: Sequence[str], runtime: Runtime) -> bool:
    """Ask for *recall* and return whether it is a fact now; if not, the run takes it in when it can."""
    return await make_facts(
        engine, configs, runtime, recall, requests=RecallRequests, name=recall.recall_id, is_new=is_new
    )


async def make_facts(
    engine: Engine,
    configs: Sequence[str],
    runtime: Runtime,
    asked: Recalled | Request,
    *,
    requests: type[RecallRequests] | type[StandingRequests],
    name: str,
    is_new: Callable[[ConfigState, Any], bool],
) -> bool:
    """Ask for a fact of *configs*, and for all that waits like it; return whether it is one now.

    Facts have one writer. Where a run is alive that is its control process, which is waited for; where none
    is, this one takes its place for a moment.
    """
    settings = get_settings()
    stored: Any = requests(engine.kv)  # of the kind of *asked*
    for config in configs:
        await stored.add(config, asked)
    async with AsyncExitStack() as stack:
        try:
            mine = await stack.enter_async_context(in_control(engine, runtime, MasterLoopGuard(), settings))
        except Conflict:
            return await _is_taken_in(configs, runtime, lambda config: stored.is_waiting(config, name))
        bucket = configured_rules(settings).bucket
        waiting: Any = requests(mine.kv)
        for config in configs:
            ledger = await Ledger.open(mine.kv, config, bucket_rules=bucket)
            for each in await waiting.waiting(config):
                if is_new(ledger.state, each):
                    await ledger.append(msgspec.structs.replace(each, at_s=runtime.now_s()))
                # After the fact is written: a crash between the two repeats a request, which then changes
                # nothing.
                await waiting.remove(config, each)
    return True


async def _is_taken_in(
    configs: Sequence[str], runtime: Runtime, is_waiting: Callable[[str], Awaitable[bool]]
) -> bool:
    until_s = runtime.monotonic_s() + TAKEN_IN_S_MAX
    while runtime.monotonic_s() < until_s:
        if not any([await is_waiting(config) for config in configs]):
            return True
        await runtime.sleep(LOOK_EVERY_S)
    return False


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMES_SHOWN])
    return shown if len(names) <= NAMES_SHOWN else f"{shown} and {len(names) - NAMES_SHOWN} more"


why = click.option("--reason", default="", help="Why; kept for ever.")


@click.group(invoke_without_command=True)
@click.option("--worker", help="Games that this worker brought.")
@click.option("--model", help="Games that this model played.")
@click.option("--from", "from_", metavar="TIME", help="Since then: YYYY-MM-DDTHH:MM, '2h ago'.")
@click.option("--until", metavar="TIME", help="Before then.")
@click.option("--config", help="Of this config only.")
@why
@click.option("--yes", is_flag=True, help="Do it without asking.")
@as_json
@on_data_folder
@click.pass_context
def recall(  # noqa: PLR0913 (each is an option of the command)
    context: click.Context,
    worker: str | None,
    model: str | None,
    from_: str | None,
    until: str | None,
    config: str | None,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Mark games as bad: all that is named must hold. They leave window, ratings and promotion evidence."""
    if context.invoked_subcommand is not None:
        return
    with plain_errors():
        now_s = system_runtime().now_s()
        asked = Recalled(
            at_s=now_s,
            recall_id="",
            reason=reason,
            worker=worker,
            model=model,
            from_s=None if from_ is None else parse_moment(from_, option="--from", now_s=now_s),
            until_s=None if until is None else parse_moment(until, option="--until", now_s=now_s),
        )
        _require_sense(asked)
        found, effects = ask_engine(lambda engine: _preview(engine, asked, config))
        if not as_json:
            _show(found, effects)
        done = _is_wanted(yes, as_json) and _carry_out(found, [each.config for each in effects], as_json)
    if as_json:
        print_json(_document(found, effects, recalled=done))


@recall.command("list")
@as_json
@on_data_folder
def list_recalls(as_json: bool) -> None:
    """List the recalls of a run, also those that were withdrawn or wait to be taken in."""
    with plain_errors():
        rows = ask_engine(_recalls)
    if as_json:
        print_json(rows)
    elif not rows:
        console().print("Nothing was ever recalled here.")
    else:
        for row in rows:
            console().print(_shown(row), markup=False)


@recall.command("withdraw")
@click.argument("recall_id", metavar="ID", help="As `ringrift recall list` shows it.")
@why
@as_json
@on_data_folder
def withdraw(recall_id: str, reason: str, as_json: bool) -> None:
    """Take a recall back: its games count again."""
    with plain_errors():
        found, configs = ask_engine(lambda engine: _find(engine, recall_id))
        taken_back = msgspec.structs.replace(
            found,
            at_s=system_runtime().now_s(),
            withdrawn=True,
            reason=f"{found.reason}; withdrawn: {reason or 'no reason given'}",
        )
        done = ask_engine(lambda engine: make_fact(engine, taken_back, configs, system_runtime()))
    if as_json:
        print_json({"recall": found.recall_id, "configs": configs, "withdrawn": done})
    else:
        tell_taken_in(done, f"{found.recall_id} is withdrawn: its games count again in {', '.join(configs)}")


def _require_sense(asked: Recalled) -> None:
    if (asked.worker, asked.model, asked.from_s, asked.until_s) == (None, None, None, None):
        raise ConfigError(
            "say what to recall: --worker, --model, --from or --until; `ringrift recall list` shows recalls"
        )
    if asked.from_s is not None and asked.until_s is not None and asked.from_s >= asked.until_s:
        raise ConfigError("--from must be before --until")
    if not asked.reason.strip():
        raise ConfigError("a recall needs its --reason: whoever finds it later has to understand it")


async def _preview(
    engine: Engine, asked: Recalled, config: str | None
) -> tuple[Recalled, list[RecallEffect]]:
    states = await read_states(engine.kv, config)
    if asked.worker is not None:
        await require_worker(engine.kv, states, asked.worker)
    if asked.model is not None:
        asked = msgspec.structs.replace(asked, model=require_model(states, asked.model))
    named = msgspec.structs.replace(asked, recall_id=new_recall_id(asked))
    return named, [recall_effect(state, named) for state in states]


def _show(asked: Recalled, effects: list[RecallEffect]) -> None:
    console().print(f"This recall covers {covered_in_words(asked)}.\n", markup=False)
    for effect in effects:
        print_effect(effect)


def _is_wanted(yes: bool, as_json: bool) -> bool:
    if yes:
        return True
    if as_json or not sys.stdin.isatty():
        if not as_json:
            console().print("Nothing was changed; add --yes to recall them.")
        return False
    return click.confirm("Recall them?")


def _carry_out(asked: Recalled, configs: list[str], as_json: bool) -> bool:
    done = ask_engine(lambda engine: make_fact(engine, asked, configs, system_runtime()))
    if not as_json:
        tell_taken_in(
            done, f"{asked.recall_id}: recalled; `ringrift recall withdraw {asked.recall_id}` takes it back"
        )
    return done


def tell_taken_in(done: bool, text: str) -> None:
    if done:
        console().print(text, markup=False)
    elif is_master_loop_running():
        console().print("The run has not taken it in yet; it will at its next pass.")
    else:
        console().print("It waits, and the next `ringrift run` takes it in before anything else.")


async def _recalls(engine: Engine) -> list[dict[str, Any]]:
    rows, recall_requests = [], RecallRequests(engine.kv)
    for state in await read_states(engine.kv, None):
        waiting = {each.recall_id: each for each in await recall_requests.waiting(state.config)}
        for each in (state.recalls | waiting).values():
            effect = recall_effect(state, each)
            text = "withdrawn" if each.withdrawn else "in force"
            rows.append(
                {
                    **msgspec.to_builtins(each),
                    "config": state.config,
                    "state": f"waits to be {text}" if each.recall_id in waiting else text,
                    "games": effect.games,
                    "rows": effect.rows,
                    "models": [model.model for model in effect.models],
                    "covers": covered_in_words(each),
                }
            )
    return rows


async def _find(engine: Engine, text: str) -> tuple[Recalled, list[str]]:
    """The recall in force of that id, or whose id begins so, and the configs that have it."""
    found: dict[str, Recalled] = {}
    configs: dict[str, list[str]] = {}
    recall_requests = RecallRequests(engine.kv)
    for state in await read_states(engine.kv, None):
        waiting = {each.recall_id: each for each in await recall_requests.waiting(state.config)}
        for each in (state.recalls | waiting).values():
            if each.recall_id.startswith(text) and not each.withdrawn:
                found[each.recall_id] = each
                configs.setdefault(each.recall_id, []).append(state.config)
    if len(found) != 1:
        what = f"{len(found)} recalls are" if found else "no recall in force is"
        raise ConfigError(f"{what} called {text!r}; `ringrift recall list` shows them")
    recall_id = next(iter(found))
    return found[recall_id], configs[recall_id]


def _shown(row: dict[str, Any]) -> str:
    when = clock(row["at_s"], with_date=True)
    touched = f"{count(row['games'])} games, {count(row['rows'])} rows, {len(row['models'])} models touched"
    return (
        f"{row['recall_id']}  {row['config']}  {row['state']} ({when}): {touched}\n"
        f"  {row['covers']}: {row['reason']}"
    )


def _document(asked: Recalled, effects: list[RecallEffect], *, recalled: bool) -> dict[str, Any]:
    return {
        "recall": asked.recall_id,
        "recalled": recalled,
        "covers": covered_in_words(asked),
        "configs": {each.config: effect_as_json(each) for each in effects},
    }
