"""The report of a run as one file: HTML for a browser, Markdown for everything else."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ringrift.cli.config_history import ConfigHistory
from ringrift.cli.report_curve import curve_svg
from ringrift.cli.wording import NOTHING, brief, clock, count, duration, effort, money, rate, rating
from ringrift.learning.run_status import ConfigStatus, RunStatus, cost_rows

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
WORD_CHARS_MAX = 40
FRESH_S = 15.0  # the control process tells its status every second
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
            told = NOTHING if rated is None else rating(rated.rating, (rated.low, rated.high))
            state = str(model.state).replace("_", " ")
            rows.append(
                (model.purpose or str(model.number), brief(model.digest), brief(model.parent), state, told)
            )
        return ("model", "digest", "parent", "state", "rating"), rows


def html_report(run: RunStatus, chapters: Sequence[Chapter], *, now_s: float) -> str:
    parts = [f"<h1>RingRift report</h1><p class=muted>{escape(_opening(run, now_s))}</p>"]
    for chapter in chapters:
        curve = curve_svg(chapter.status.curve, title=f"Rating of the champions of {chapter.config}")
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
        curve = curve_svg(chapter.status.curve, title=f"Rating of the champions of {chapter.config}")
        parts.append(f"## {_plain(chapter.config)}")
        parts.append(_picture(curve) if curve else "No champion yet.")
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
    told = f"The run on {run.node} is {run.state} with {run.workers} workers, since {for_long}"
    if run.state == "stopped" or now_s - run.at_s > FRESH_S:
        told = f"The run on {run.node} was last seen at {seen}, {for_long} after its start"
    return f"Written {clock(now_s, with_date=True)}. {told}."


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


def _picture(svg: str) -> str:
    return f"![rating curve](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"
