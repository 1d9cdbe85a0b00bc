"""What a run has learned: `ringrift models` lists every network with its parents, strength and fate, and
`ringrift report` writes the run so far as one file to keep or to send.
"""

from __future__ import annotations

import base64
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor
from pathlib import Path
from typing import Any

import click
import msgspec

from ringrift.cli.command import PATH, as_json, on_data_folder, plain_errors, print_json, some_config
from ringrift.cli.data_folder import ask_engine, configs_of, require_config
from ringrift.cli.format import (
    NOTHING,
    brief,
    clock,
    console,
    count,
    duration,
    effort,
    money,
    print_table,
    rate,
    rating,
)
from ringrift.engine.ports import Blobs, Engine, KeyValue
from ringrift.errors import ConfigError, StorageReadOnly
from ringrift.files import replacing
from ringrift.health.run_status import ConfigStatus, Curve, RunStatus, cost_rows, read_run_status
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.facts.records import BucketRules, Model
from ringrift.learning.facts.state import ConfigState, fold
from ringrift.learning.judging.ratings import Rating
from ringrift.learning.judging.ratings import rate as rate_matches
from ringrift.learning.plan.students import newest_student
from ringrift.learning.plan.training_data import learned_shards
from ringrift.runtime import system_runtime
from ringrift.statistics.line_plot import line_plot

# --- `ringrift models` --------------------------------------------------------------------------------


# What the facts of a config add up to, read for a command: models with ratings, promotions with evidence.


CONTENDER = "contender"  # the role of a network that is, was or may become the champion


class ConfigHistory(msgspec.Struct, frozen=True):
    """The state of a config, and the ratings of its participants."""

    state: ConfigState
    ratings: dict[str, Rating]


async def read_history(kv: KeyValue, config: str) -> ConfigHistory:
    """Fold all facts of *config*."""
    state = fold(config, await read_facts(kv, config), bucket_rules=BucketRules())
    return ConfigHistory(state, rate_matches(state.trusted_matches()))


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
    strength = rating(row["rating"], row["rating_interval"])
    console().print(f"{row['state']}, rating {strength} from {row['rated_games']} games", markup=False)
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with await blobs.open(digest) as source, replacing(path, private=False) as target:
            shutil.copyfileobj(source, target)
    except KeyError:
        raise ConfigError(f"the store does not have {digest} any more") from None
    except OSError as error:
        raise StorageReadOnly(f"{path} cannot be written: {error.strerror}") from None


# --- `ringrift report` --------------------------------------------------------------------------------


TICKS_MAX = 7
# steps that people count time in
_STEPS_S = (1, 5, 15, 30, 60, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)


def rating_curve(config: str, curve: Sequence[Curve]) -> str:
    """The ratings of the champions over time, with their intervals; empty text if there is none."""
    if not curve:
        return ""
    later_s = [point.at_s - curve[0].at_s for point in curve]
    return line_plot(
        f"Rating of the champions of {config}",
        {"rating": [(at, point.rating) for at, point in zip(later_s, curve, strict=True)]},
        x_label="since the first champion",
        y_label="rating",
        bands={"rating": [(at, point.low, point.high) for at, point in zip(later_s, curve, strict=True)]},
        notes={
            "rating": [
                f"{brief(p.model)}: {p.rating:.0f} ({p.low:.0f} to {p.high:.0f}), {count(p.rows)} rows, "
                f"{clock(p.at_s, with_date=True)}"
                for p in curve
            ]
        },
        x_ticks=[(at, duration(at)) for at in _round_times(later_s[-1])],
    )


def _round_times(span_s: float) -> list[float]:
    """Round times from 0 to *span_s*, a handful at most."""
    fitting = [step for step in _STEPS_S if span_s / step <= TICKS_MAX]
    step = fitting[0] if fitting else _STEPS_S[-1] * ceil(span_s / TICKS_MAX / _STEPS_S[-1])
    return [float(step * n) for n in range(floor(span_s / step) + 1)]


# The report of a run as one file: HTML for a browser, Markdown for everything else.


STYLE = """
body{font:15px/1.55 system-ui,sans-serif;max-width:920px;margin:40px auto;padding:0 20px}
body{color:#18212d;background:#fff}h1{font-size:26px;margin-bottom:4px}
h2{margin-top:44px;font-size:20px;border-bottom:1px solid #dde3ea;padding-bottom:6px}
table{border-collapse:collapse;width:100%;margin:12px 0;font-variant-numeric:tabular-nums}
td,th{text-align:left;padding:5px 12px 5px 0;border-bottom:1px solid #e8ecf1;vertical-align:top}
.long{overflow-wrap:anywhere}td:first-child{min-width:5.5em}.scroll{overflow-x:auto}
th{font-size:13px;color:#566273}.muted{color:#566273}code{font-size:13px}svg{width:100%;height:auto}
@media(prefers-color-scheme:dark){body{background:#0c1015;color:#e7edf4}td,th,h2{border-color:#252e39}th,.muted{color:#9aa8b8}}
"""
WORD_CHARS_MAX = 40  # longer ones are digests and paths
FRESH_S = 15.0  # the control process tells its status every second
# The file is sent to others: it loads nothing, runs nothing, and says so to the browser.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"

Table = tuple[Sequence[str], Sequence[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Chapter:
    """What is said of one config."""

    config: str
    status: ConfigStatus
    history: ConfigHistory

    def numbers(self) -> Table:
        s = self.status
        rows = [
            ("Rating", rating(s.rating, s.rating_interval)),
            ("Champion", s.champion or NOTHING),
            ("Promotions, refused, taken back", f"{s.promotions}, {s.rejections}, {s.rollbacks}"),
            ("Games accepted, refused", f"{count(s.games)}, {count(s.games_refused)}"),
            ("Rows, rows seen in training", f"{count(s.rows)}, {count(s.sample_steps)}"),
            ("Games a second", rate(s.games_per_s)),
        ]
        return ("", ""), rows

    def cost(self) -> Table:
        rows = [
            (row.what, effort(row.cpu_s), effort(row.gpu_s), money(row.money))
            for row in cost_rows(self.status.cost)
        ]
        return ("", "CPU", "GPU", "money"), rows

    def promotions(self) -> Table:
        rows = [
            (
                clock(each.at_s, with_date=True),
                brief(each.model),
                brief(each.previous),
                count(each.rows),
                each.reason,
                _evidence(each.evidence),
            )
            for each in self.history.state.promotions
        ]
        return ("when", "model", "instead of", "rows", "why", "evidence"), rows

    def models(self) -> Table:
        """Students are the last, under what they are for."""
        ratings, run = self.history.ratings, self.history.state
        rows = []
        for model in (*run.models.values(), *run.students.values()):
            rated = ratings.get(model.digest)
            shown = NOTHING if rated is None else rating(rated.rating, (rated.low, rated.high))
            state = str(model.state).replace("_", " ")
            rows.append(
                (
                    model.purpose or str(model.number),
                    brief(model.digest),
                    brief(model.parent),
                    state,
                    shown,
                )
            )
        return ("model", "digest", "parent", "state", "rating"), rows


def html_report(run: RunStatus, chapters: Sequence[Chapter], *, now_s: float) -> str:
    parts = [f"<h1>RingRift report</h1><p class=muted>{escape(_opening(run, now_s))}</p>"]
    for chapter in chapters:
        curve = rating_curve(chapter.config, chapter.status.curve)
        parts.append(f"<h2>{escape(chapter.config)}</h2>")
        parts.append(curve or "<p>No champion yet.</p>")
        for title, table in _tables(chapter):
            parts.append(f"<h3>{title}</h3>{_html_table(table)}")
    head = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>RingRift report</title>'
        f'<meta http-equiv="content-security-policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style>'
    )
    return f"{head}{''.join(parts)}</html>\n"


def markdown_report(run: RunStatus, chapters: Sequence[Chapter], *, now_s: float) -> str:
    parts = ["# RingRift report", _plain(_opening(run, now_s))]
    for chapter in chapters:
        curve = rating_curve(chapter.config, chapter.status.curve)
        parts.append(f"## {_plain(chapter.config)}")
        parts.append(_drawing(curve) if curve else "No champion yet.")
        for title, table in _tables(chapter):
            parts += [f"### {title}", _markdown_table(table)]
    return "\n\n".join(parts) + "\n"


def _tables(chapter: Chapter) -> list[tuple[str, Table]]:
    return [
        ("Numbers", chapter.numbers()),
        ("Cost", chapter.cost()),
        ("Promotions and their evidence", chapter.promotions()),
        ("Models", chapter.models()),
    ]


def _opening(run: RunStatus, now_s: float) -> str:
    for_long, seen = duration(run.at_s - run.started_s), clock(run.at_s, with_date=True)
    text = f"The run on {run.node} is {run.state} with {run.workers} workers, since {for_long}"
    # A process that was killed leaves its last status behind, which still says "running".
    if run.state == "stopped" or now_s - run.at_s > FRESH_S:
        text = f"The run on {run.node} was last seen at {seen}, {for_long} after its start"
    return f"Written {clock(now_s, with_date=True)}. {text}."


def _evidence(evidence: dict[str, Any]) -> str:
    """In words: `untrained: games 160, score 0.8; floor: games 128`."""
    plain = {name: value for name, value in evidence.items() if not isinstance(value, dict)}
    parts = [_listed(plain)] if plain else []
    parts += [f"{name}: {_listed(of)}" for name, of in evidence.items() if isinstance(of, dict)]
    return "; ".join(parts).replace("_", " ") or NOTHING


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {_value(value)}" for name, value in values.items() if value not in ([], ()))


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "/".join(_value(each) for each in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _html_table(table: Table) -> str:
    columns, rows = table
    if not rows:
        return "<p class=muted>None yet.</p>"
    head = "".join(f"<th>{escape(column)}</th>" for column in columns) if any(columns) else ""
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<div class=scroll><table>{head}<tbody>{body}</tbody></table></div>"


def _html_cell(text: str) -> str:
    """A word as long as a digest may be broken; others make the table scroll."""
    long = any(len(word) > WORD_CHARS_MAX for word in text.split())
    return f"<td{' class=long' if long else ''}>{escape(text)}</td>"


def _markdown_table(table: Table) -> str:
    columns, rows = table
    if not rows:
        return "None yet."
    lines = [columns, ["---"] * len(columns), *[[_plain(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """No character of *text* means anything to Markdown."""
    return "".join(f"\\{c}" if c in "\\`*_{}[]<>#|!" else c for c in text.replace("\n", " "))


def _drawing(svg: str) -> str:
    # In the text itself, because a report is one file.
    return f"![rating curve](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


WRITERS = {".html": html_report, ".htm": html_report, ".md": markdown_report}


@click.command()
@click.argument("config", required=False, help="A config of the run; without one, all.")
@click.option(
    "--out",
    type=PATH,
    default=Path("ringrift-report.html"),
    show_default=True,
    metavar="FILE",
    help="The file to write, .html or .md.",
)
@as_json
@on_data_folder
def report(config: str | None, out: Path, as_json: bool) -> None:
    """Write a report: rating curve, costs, promotions with their evidence, models."""
    with plain_errors():
        write = WRITERS.get(out.suffix.lower())
        if write is None:
            raise ConfigError(f"--out is {str(out)!r}; it must end in {', '.join(WRITERS)}")
        run, chapters = ask_engine(lambda engine: _collect(engine, config))
        text = write(run, chapters, now_s=system_runtime().now_s())
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise StorageReadOnly(f"{out} cannot be written: {error.strerror}") from None
    if as_json:
        print_json({"file": str(out), "configs": [chapter.config for chapter in chapters]})
    else:
        console().print(f"wrote {out} ({len(text.encode()) / 1000:.0f} kB)", markup=False)


async def _collect(engine: Engine, config: str | None) -> tuple[RunStatus, list[Chapter]]:
    if config is not None:
        await require_config(engine.kv, config)
    run = await read_run_status(engine.kv)
    if run is None:
        raise ConfigError("the run has told nothing yet; try again when it has been up for a few seconds")
    wanted = [key for key in run.configs if config in (None, key)]
    return run, [Chapter(key, run.configs[key], await read_history(engine.kv, key)) for key in wanted]
