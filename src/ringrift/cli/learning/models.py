"""`ringrift models`: every network of a run: whose child it is, how strong, what became of it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from ringrift.cli.command import PATH, as_json, on_data_folder, plain_errors, print_json, some_config
from ringrift.cli.data_folder import ask_engine, configs_of, require_config
from ringrift.cli.format import NOTHING, brief, clock, console, count, print_table, rating
from ringrift.engine.ports import Blobs, Engine, KeyValue
from ringrift.errors import ConfigError, StorageReadOnly
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import Model
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.learning.facts.window import BucketRules
from ringrift.learning.judging.ratings import Rating, rate
from ringrift.learning.plan.recall import learned_shards
from ringrift.learning.plan.students import newest_student

# What the facts of a config add up to, read for a command: models with ratings, promotions with evidence.


CONTENDER = "contender"  # the role of a network that is, was or may become the champion


class ConfigHistory(msgspec.Struct, frozen=True):
    """The state of a config, and the ratings of its participants."""

    state: ConfigState
    ratings: dict[str, Rating]


async def read_history(kv: KeyValue, config: str) -> ConfigHistory:
    """Fold all facts of *config*."""
    state = fold(config, await read_facts(kv, config), bucket_rules=BucketRules())
    return ConfigHistory(state, rate(state.trusted_matches()))


def find_model(state: ConfigState, text: str | None) -> Model:
    """The model of that number, the network whose digest begins so, or the student in use for that purpose.

    The champion for None.
    """
    if text is None:
        if state.champion is None:
            raise ConfigError(
                f"{state.config} has no champion yet; name a model of `ringrift models {state.config}`"
            )
        return state.models[state.champion]
    found = [m for m in state.models.values() if m.digest.startswith(text) or str(m.number) == text]
    found += [student for student in state.students.values() if student.digest.startswith(text)]
    # A purpose is a word of its own and wins over a digest that happens to begin like it.
    if (in_use := newest_student(state, text)) is not None:
        found = [in_use]
    if len(found) != 1:
        what = f"{len(found)} models of {state.config} are" if found else f"no model of {state.config} is"
        raise ConfigError(f"{what} called {text!r}; `ringrift models {state.config}` lists them")
    return found[0]


def model_row(history: ConfigHistory, model: Model) -> dict[str, Any]:
    """What programs get of a model."""
    rated = history.ratings.get(model.digest)
    # Programs read these keys: names and meanings stay.
    return {
        "number": model.number,
        "model": model.digest,
        "role": model.purpose or CONTENDER,
        "parent": model.parent,
        "state": str(model.state),
        "is_champion": model.digest == history.state.champion,
        "is_generator": model.digest == history.state.generator,
        "rating": None if rated is None else rated.rating,
        "rating_interval": None if rated is None else (rated.low, rated.high),
        "rated_games": 0 if rated is None else rated.games,
        "rows_seen": model.rows_seen,
        "losses": model.losses,
        "samples": model.samples,
        "shards": len(learned_shards(history.state, model)),
        "card": model.card,
        "job": model.job_id,
        "made_s": model.made_s,
        "history": [{"at_s": at_s, "state": state, "reason": why} for at_s, state, why in model.history],
    }


MODEL_COLUMNS = ("model", "digest", "parent", "state", "rating", "games", "rows seen", "made")
STUDENT_COLUMNS = ("role", "digest", "state", "rating", "rows seen", "made")  # a number is that of a model


class _ListByDefault(click.Group):
    """Takes `models CONFIG` for `models list CONFIG`."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = not args or args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["list", *args])


@click.group(cls=_ListByDefault, invoke_without_command=True)
@as_json
@on_data_folder
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """The networks of a run. Without a command, or with a config instead: a list of them."""
    if context.invoked_subcommand is None:
        _list(None, as_json=as_json)


@models.command("list")
@click.argument("config", required=False, help="A config of the run; without one, all.")
@as_json
@on_data_folder
def list_models(config: str | None, as_json: bool) -> None:
    """List models with lineage, state and rating, oldest first."""
    _list(config, as_json=as_json)


@models.command("show")
@some_config
@click.argument(
    "model", required=False, help="Number, first characters of a digest, or role; else the champion."
)
@as_json
@on_data_folder
def show(config: str, model: str | None, as_json: bool) -> None:
    """Show one model with its history and lineage."""
    with plain_errors():
        history = ask_engine(lambda engine: _history(engine, config))
        found = find_model(history.state, model)
    row = model_row(history, found) | {"lineage": lineage(history, found)}
    if as_json:
        print_json(row)
        return
    console().print(f"{found.purpose or 'model'} {found.number} of {config}: {found.digest}", markup=False)
    told = rating(row["rating"], row["rating_interval"])
    console().print(f"{row['state']}, rating {told} from {row['rated_games']} games", markup=False)
    shards = len(learned_shards(history.state, found))
    console().print(f"trained on {count(found.rows_seen)} rows in all, the last ones of {shards} shards")
    console().print(f"lineage: {' < '.join(brief(each) for each in row['lineage'])}\n")
    rows = [(clock(at_s, with_date=True), state, why) for at_s, state, why in found.history]
    print_table("History", ("when", "state", "why"), rows)


@models.command("export")
@some_config
@click.argument("destination", type=PATH, help="A folder, or a file that ends in .safetensors.")
@click.option("--model", help="Number, digest or role; else the champion.")
@as_json
@on_data_folder
def export(config: str, destination: Path, model: str | None, as_json: bool) -> None:
    """Copy a model and its card out of the store, to play with or to keep."""
    with plain_errors():
        weights = ask_engine(lambda engine: _export(engine, config, model, destination))
    written = {"weights": str(weights), "card": str(weights.with_suffix(".json"))}
    if as_json:
        print_json(written)
    else:
        console().print(f"wrote {weights} and its card {weights.with_suffix('.json')}", markup=False)


def lineage(history: ConfigHistory, model: Model) -> list[str]:
    """The model, its parent, and so on to the first."""
    line = [model.digest]
    # A model that was imported may name a parent that nobody here knows, or, if damaged, itself.
    while model.parent is not None and model.parent not in line:
        before = history.state.player(model.parent)
        if before is None:
            break
        line.append(before.digest)
        model = before
    return line


def _list(config: str | None, *, as_json: bool) -> None:
    with plain_errors():
        histories = ask_engine(lambda engine: _histories(engine, config))
    if as_json:
        print_json({h.state.config: _rows(h, h.state.models) + _rows(h, h.state.students) for h in histories})
        return
    for history in histories:
        state = history.state
        if state.models:
            print_table(f"{state.config}\n", MODEL_COLUMNS, _cells(history, state.models, MODEL_COLUMNS))
        else:
            console().print(f"{state.config}: no model has been trained yet", markup=False)
        if state.students:
            cells = _cells(history, state.students, STUDENT_COLUMNS)
            print_table(f"\nStudents of {state.config}\n", STUDENT_COLUMNS, cells)


def _rows(history: ConfigHistory, family: Mapping[str, Model]) -> list[dict[str, Any]]:
    return [model_row(history, model) for model in family.values()]


def _cells(history: ConfigHistory, family: Mapping[str, Model], columns: Sequence[str]) -> list[list[str]]:
    shown = [_shown(row) for row in _rows(history, family)]
    return [[each[column] for column in columns] for each in shown]


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {
        "model": f"{row['number']}{' *' if row['is_champion'] else ''}",
        "role": row["role"],
        "digest": brief(row["model"]),
        "parent": brief(row["parent"]) if row["parent"] else NOTHING,
        "state": row["state"],
        "rating": rating(row["rating"], row["rating_interval"]),
        "games": count(row["rated_games"]),
        "rows seen": count(row["rows_seen"]),
        "made": clock(row["made_s"], with_date=True),
    }


async def _histories(engine: Engine, config: str | None) -> list[ConfigHistory]:
    wanted = await configs_of(engine.kv) if config is None else (await require_config(engine.kv, config),)
    return [await read_history(engine.kv, each) for each in wanted]


async def _history(engine: Engine, config: str) -> ConfigHistory:
    return await read_history(engine.kv, await require_config(engine.kv, config))


async def _export(engine: Engine, config: str, text: str | None, destination: Path) -> Path:
    model = find_model((await _history(engine, config)).state, text)
    weights = destination
    if destination.suffix != ".safetensors":
        # The key of a foreign game may hold a colon, brackets or a slash.
        plain = "".join(c if c.isalnum() or c in "_-" else "-" for c in config)
        purpose = f"{model.purpose}-" if model.purpose else ""
        weights = destination / f"{plain}-{purpose}{model.number}-{brief(model.digest)}.safetensors"
    # The card last, as it says that the weights are whole.
    for digest, path in ((model.digest, weights), (model.card, weights.with_suffix(".json"))):
        await _copy(engine.blobs, digest, path)
    return weights


async def _copy(blobs: Blobs, digest: str, path: Path) -> None:
    """Under another name first, so that a file of the right name is whole."""
    partial = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with await blobs.open(digest) as source, partial.open("wb") as target:
            shutil.copyfileobj(source, target)
        partial.replace(path)
    except KeyError:
        raise ConfigError(f"the store does not have {digest} any more") from None
    except OSError as error:
        raise StorageReadOnly(f"{path} cannot be written: {error.strerror}") from None
