"""`ringrift recall`: games that are not to be trusted leave a run; what that touches is shown first."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from ringrift.bootstrap.master_loop import is_master_loop_running
from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.moments import parse_moment
from ringrift.cli.options import as_json, on_data_folder
from ringrift.cli.recall_acts import make_fact, new_recall_id, read_states, require_model, require_worker
from ringrift.cli.recall_view import covered_in_words, effect_as_json, print_effect
from ringrift.cli.terminal import console
from ringrift.cli.wording import clock, count
from ringrift.engine.ports import Engine
from ringrift.errors import ConfigError
from ringrift.learning.facts import Recalled
from ringrift.learning.recall import RecallEffect, recall_effect
from ringrift.learning.recall_wishes import RecallWishes
from ringrift.runtime import system_runtime

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
    rows, wishes = [], RecallWishes(engine.kv)
    for state in await read_states(engine.kv, None):
        waiting = {each.recall_id: each for each in await wishes.waiting(state.config)}
        for each in (state.recalls | waiting).values():
            effect = recall_effect(state, each)
            told = "withdrawn" if each.withdrawn else "in force"
            rows.append(
                {
                    **msgspec.to_builtins(each),
                    "config": state.config,
                    "state": f"waits to be {told}" if each.recall_id in waiting else told,
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
    wishes = RecallWishes(engine.kv)
    for state in await read_states(engine.kv, None):
        waiting = {each.recall_id: each for each in await wishes.waiting(state.config)}
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
