"""`ringrift models`: every network of a run: whose child it is, how strong, what became of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from ringrift.cli.config_history import ConfigHistory, find_model, model_row, read_history
from ringrift.cli.data_folder import AsJson, Data, ask_engine, use_data_folder
from ringrift.cli.known_configs import configs_of, require_config
from ringrift.cli.terminal import console, plain_errors, print_json, print_table
from ringrift.cli.wording import NOTHING, brief, clock, count, rating
from ringrift.engine.ports import Blobs, Engine
from ringrift.errors import ConfigError, StorageReadOnly
from ringrift.learning.records import Model


class _ListByDefault(TyperGroup):
    """Takes `models CONFIG` for `models list CONFIG`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = not args or args[0] in self.commands
        return super().resolve_command(ctx, args if known else ["list", *args])


models_app = typer.Typer(cls=_ListByDefault, invoke_without_command=True, help="The networks of a run.")

Config = Annotated[str, typer.Argument(help="A config of the run.")]
Which = Annotated[str | None, typer.Argument(help="Number or first characters; the champion if not given.")]


@models_app.callback()
def models(context: typer.Context, as_json: AsJson = False, data: Data = None) -> None:
    """Without a command: the models of all configs."""
    if context.invoked_subcommand is None:
        _list(None, as_json=as_json, data=data)


@models_app.command("list")
def list_models(
    config: Annotated[str | None, typer.Argument(help="A config of the run; without one, all.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """List models with lineage, state and rating, oldest first."""
    _list(config, as_json=as_json, data=data)


@models_app.command("show")
def show(config: Config, model: Which = None, as_json: AsJson = False, data: Data = None) -> None:
    """Show one model with its history and lineage."""
    with plain_errors():
        use_data_folder(data)
        history = ask_engine(lambda engine: _history(engine, config))
        found = find_model(history.state, model)
    row = model_row(history, found) | {"lineage": lineage(history, found)}
    if as_json:
        print_json(row)
        return
    console().print(f"model {found.number} of {config}: {found.digest}", markup=False)
    told = rating(row["rating"], row["rating_interval"])
    console().print(f"{row['state']}, rating {told} from {row['rated_games']} games", markup=False)
    console().print(f"trained on {count(found.rows_seen)} rows in all, of {len(found.shards)} shards")
    console().print(f"lineage: {' < '.join(brief(each) for each in row['lineage'])}\n")
    rows = [(clock(at_s, with_date=True), state, why) for at_s, state, why in found.history]
    print_table("History", ("when", "state", "why"), rows)


@models_app.command("export")
def export(
    config: Config,
    destination: Annotated[Path, typer.Argument(help="A folder, or a file that ends in .safetensors.")],
    model: Annotated[str | None, typer.Option(help="Number or digest; the champion if not given.")] = None,
    as_json: AsJson = False,
    data: Data = None,
) -> None:
    """Copy a model and its card out of the store, to play with or to keep."""
    with plain_errors():
        use_data_folder(data)
        weights = ask_engine(lambda engine: _export(engine, config, model, destination))
    written = {"weights": str(weights), "card": str(weights.with_suffix(".json"))}
    if as_json:
        print_json(written)
    else:
        console().print(f"wrote {weights} and its card {weights.with_suffix('.json')}", markup=False)


def lineage(history: ConfigHistory, model: Model) -> list[str]:
    """The model, its parent, and so on to the first."""
    line = [model.digest]
    while (parent := history.state.models[line[-1]].parent) in history.state.models and parent not in line:
        line.append(parent)
    return line


def _list(config: str | None, *, as_json: bool, data: Path | None) -> None:
    with plain_errors():
        use_data_folder(data)
        histories = ask_engine(lambda engine: _histories(engine, config))
    if as_json:
        print_json({h.state.config: [model_row(h, m) for m in h.state.models.values()] for h in histories})
        return
    columns = ("model", "digest", "parent", "state", "rating", "games", "rows seen", "made")
    for history in histories:
        rows = [_shown(model_row(history, model)) for model in history.state.models.values()]
        if rows:
            print_table(f"{history.state.config}\n", columns, rows)
        else:
            console().print(f"{history.state.config}: no model has been trained yet", markup=False)


def _shown(row: dict[str, Any]) -> list[str]:
    return [
        f"{row['number']}{' *' if row['is_champion'] else ''}",
        brief(row["model"]),
        brief(row["parent"]) if row["parent"] else NOTHING,
        row["state"],
        rating(row["rating"], row["rating_interval"]),
        count(row["rated_games"]),
        count(row["rows_seen"]),
        clock(row["made_s"], with_date=True),
    ]


async def _histories(engine: Engine, config: str | None) -> list[ConfigHistory]:
    wanted = await configs_of(engine.kv) if config is None else (await require_config(engine.kv, config),)
    return [await read_history(engine.kv, each) for each in wanted]


async def _history(engine: Engine, config: str) -> ConfigHistory:
    return await read_history(engine.kv, await require_config(engine.kv, config))


async def _export(engine: Engine, config: str, text: str | None, destination: Path) -> Path:
    model = find_model((await _history(engine, config)).state, text)
    weights = destination
    if destination.suffix != ".safetensors":
        plain = "".join(c if c.isalnum() or c in "_-" else "-" for c in config)
        weights = destination / f"{plain}-{model.number}-{brief(model.digest)}.safetensors"
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
