"""`ringrift replay CONFIG`: make every decision of a config again, and say which does not follow."""

from __future__ import annotations

from typing import Any

import click
import msgspec

from ringrift.cli.answers import plain_errors, print_json
from ringrift.cli.data_folder import ask_engine
from ringrift.cli.known_configs import require_config
from ringrift.cli.options import as_json, on_data_folder, some_config
from ringrift.cli.terminal import console, print_table
from ringrift.cli.wording import clock, count
from ringrift.engine.ports import Engine
from ringrift.engine.sqlite.faults import LOST_ADVICE
from ringrift.errors import ConfigError, Corrupt
from ringrift.learning.facts import AnyFact
from ringrift.learning.ledger import read_facts
from ringrift.learning.replay import DecisionDivergence, Moment, in_short, moment, rebuilt_facts, replay
from ringrift.learning.rules import LearningRules, configured_rules
from ringrift.learning.rules_record import decided_by_other_plans
from ringrift.learning.run_check import check_store
from ringrift.settings import get_settings

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
