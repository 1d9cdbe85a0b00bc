"""The decisions of a run: why it does something now (`ringrift explain`), and whether every one follows
from the facts before it (`ringrift replay`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from ringrift.cli.command import as_json, on_data_folder, plain_errors, print_json, some_config
from ringrift.cli.data_folder import ask_engine, require_config
from ringrift.cli.format import clock, console, count, duration, print_table, stage_title
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.master_loop_guard import is_master_loop_running
from ringrift.daemons.requests import DaemonRequest, DaemonRequests
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.faults import LOST_ADVICE
from ringrift.errors import ConfigError, Corrupt
from ringrift.learning.facts.facts import AnyFact
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.store_check import check_store
from ringrift.learning.plan.orders import Explanation, read_explanations
from ringrift.learning.plan.rules import LearningRules, configured_rules, decided_by_other_plans
from ringrift.learning.plan.stages import not_done
from ringrift.learning.replay import DecisionDivergence, Moment, in_short, moment, rebuilt_facts, replay
from ringrift.learning.requests import Pauses
from ringrift.runtime import system_runtime
from ringrift.work.limits import Pause

# `ringrift explain CONFIG`: why the run does, or does not do, something now.


LOOP = "data_pipeline"  # the daemon that plans


@click.command()
@some_config
@as_json
@on_data_folder
def explain(config: str, as_json: bool) -> None:
    """Say, stage by stage, what the run does for a config now, and why."""
    with plain_errors():
        found, paused, stopped = ask_engine(lambda engine: _read(engine, config))
        loop, others = stopped.get(LOOP), stopped_beside(found, stopped)
        runs, now_s = is_master_loop_running(), system_runtime().now_s()
    if as_json:
        report = {"config": config, "running": runs, "paused": paused, "stages": found}
        print_json({**report, "loop_stopped": loop, "stopped": others})
        return
    if loop is not None:
        by, since = loop.by or "a user", duration(now_s - loop.at_s)
        text = f"DATA_PIPELINE is stopped by {by}, for {since} now{': ' * bool(loop.reason)}{loop.reason}"
        start = "`ringrift daemons start data_pipeline` lets the loop go on; this is what it last thought"
        console().print(Text(f"{text}; {start}.\n", style="blue"))
    if not runs:
        console().print("The run is stopped; this is what it last thought.\n")
    if paused is not None:
        by, since = paused.by or "a user", duration(now_s - paused.at_s)
        text = f"{config} is paused by {by}, for {since} now{': ' * bool(paused.reason)}{paused.reason}"
        console().print(Text(f"{text}; `ringrift resume` lets it go on.\n", style="blue"))
    if found:
        _show_stages(found, now_s)
    else:
        console().print(f"The plan has said nothing of {config} yet.", markup=False)
    for text in others.values():
        console().print(Text(f"\n{text}", style="blue"))


def stopped_beside(found: Sequence[Explanation], stopped: Mapping[str, DaemonRequest]) -> dict[str, str]:
    """What is not done without stopped daemons of which neither a stage nor the line of the loop speaks."""
    said = " ".join(each.reason for each in found)
    texts = not_done(stopped).items()
    return {name: text for name, text in texts if name != LOOP and f"{name.upper()} is stopped" not in said}


def _show_stages(found: Sequence[Explanation], now_s: float) -> None:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column()
    for each in found:
        does = Text("goes on", style="green") if each.will else Text("waits", style="yellow")
        does = Text("paused", style="blue") if each.paused else does
        left = "" if each.until_s is None else f" (for {duration(each.until_s - now_s)})"
        table.add_row(stage_title(each.stage), does, Text(each.reason + left))
    console().print(table)


async def _read(
    engine: Engine, config: str
) -> tuple[list[Explanation], Pause | None, dict[str, DaemonRequest]]:
    """What the plan said, who paused the config, and which daemons somebody stopped."""
    await require_config(engine.kv, config)
    return (
        await read_explanations(engine.kv, config),
        (await Pauses(engine.kv).read()).of(config),
        await DaemonRequests(engine.kv).stops(),
    )


# `ringrift replay CONFIG`: make every decision of a config again, and say which does not follow.


EXIT_DIVERGED = 1


@click.command("replay")
@some_config
@click.option(
    "--at",
    type=click.IntRange(min=0),
    metavar="N",
    help="Show what was known and planned after so many facts.",
)
@as_json
@on_data_folder
def replay_command(config: str, at: int | None, as_json: bool) -> None:
    """Fold the recorded facts and make the decisions again; exit code 1 if one does not follow."""
    with plain_errors():
        facts = ask_engine(lambda engine: _facts(engine, config))
        rules = configured_rules(get_settings())
        if at is not None:
            diverged = _show_moment(config, facts, rules, at, as_json=as_json)
        else:
            found = replay(config, facts, rules)
            diverged = bool(found)
            _show_all(config, facts, found, as_json=as_json)
    if diverged:
        raise click.exceptions.Exit(EXIT_DIVERGED)


async def _facts(engine: Engine, config: str) -> list[AnyFact]:
    settings = get_settings()
    found = await check_store(engine.kv, settings.data_dir)
    if found.lost:
        raise Corrupt(settings.coordinator_db, found="; ".join(found.lost), advice=LOST_ADVICE)
    return await read_facts(engine.kv, await require_config(engine.kv, config))


def _show_all(config: str, facts: list[AnyFact], found: list[DecisionDivergence], *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "config": config,
                "facts": len(facts),
                "rebuilt": rebuilt_facts(facts),
                "of_other_plans": decided_by_other_plans(facts),
                "divergences": found,
            }
        )
        return
    if rebuilt := rebuilt_facts(facts):
        console().print(f"{config}: {count(rebuilt)} facts were made again from files and are not compared")
    if others := decided_by_other_plans(facts):
        console().print(f"{config}: another version decided {count(others)} facts; they are not compared")
    if not found:
        console().print(f"{config}: {count(len(facts))} facts, every decision follows from those before it")
        return
    rows = [(str(each.number), clock(each.at_s, with_date=True), each.what, each.why) for each in found]
    print_table(f"{config}: decisions that do not follow", ("fact", "when", "what", "why"), rows)


def _show_moment(config: str, facts: list[AnyFact], rules: LearningRules, at: int, *, as_json: bool) -> bool:
    if at > len(facts):
        raise ConfigError(f"--at {at}: {config} has {len(facts)} facts")
    found = moment(config, facts, rules, at=at)
    if as_json:
        print_json(_document(found))
        return found.divergence is not None
    say, state = console().print, found.state
    say(f"After {at} of {len(facts)} facts: {count(state.games)} games, {count(state.rows)} rows,", end=" ")
    say(f"{len(state.models)} models, champion {(state.champion or 'none')[:12]}\n", markup=False)
    for fact in found.made.decided:
        say(f"  decides  {in_short(fact)}: {getattr(fact, 'reason', '')}", markup=False)
    for each in found.made.explanations:
        say(f"  {'wants ' if each.will else 'waits '}  {each.stage}: {each.reason}", markup=False)
    if found.fact is not None:
        follows = "it does not follow: " + found.divergence.why if found.divergence else "it follows"
        say(f"\nThe next fact is: {in_short(found.fact)}; {follows}", markup=False)
    return found.divergence is not None


def _document(found: Moment) -> dict[str, Any]:
    state = found.state
    return {
        "number": found.number,
        "games": state.games,
        "rows": state.rows,
        "models": len(state.models),
        "champion": state.champion,
        "open_jobs": list(state.open_jobs),
        "decided": found.made.decided,
        "wanted": [
            {"kind": each.kind, "reason": each.reason, "order": each.order} for each in found.made.wanted
        ],
        "explanations": found.made.explanations,
        "next": None if found.fact is None else msgspec.to_builtins(found.fact),
        "divergence": found.divergence,
    }
