"""Checks of the learning: hold-out, calibration, losses, rows against steps, and solved positions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ringrift.learning.doctor_findings import Ailment, Level, Ward
from ringrift.learning.state import ConfigState

HELD_GAMES_EXPECTED = 5.0
CALIBRATION_WARNING, CALIBRATION_PROBLEM = 0.15, 0.30
CALIBRATION_ROWS_MIN = 200
OVERFIT_TIMES = 1.5
RATIO_HIGH = 1.25  # of what the rules allow
FORFEITED_SHARE = 0.3
UNSPENT_CHUNKS = 4
CANARY_DROP = 0.10
CANARY_GAIN = 0.02
CANARY_MODELS = 4


def hold_out(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    """Without games that training never saw, nobody can tell learning from memorising."""
    newest, level = state.newest_model, Level.PROBLEM
    if ward.rules.hold_out == 0:
        text = f"no games of {state.config} are held out of training"
    elif newest is not None and newest.losses and newest.losses.get("best_held") is None:
        text = f"model {newest.number} of {state.config} was trained without held-out games"
        games = state.samples[newest.samples].games
        if games * ward.rules.hold_out < HELD_GAMES_EXPECTED:  # that happens by chance with few games
            level = Level.NOTICE
    else:
        return
    yield Ailment(
        level=level,
        text=f"{text}: learning cannot be told from memorising",
        advice="Set hold_out in [learning] to 0.05; with few games, wait until some hundred are there.",
        evidence={"hold_out": ward.rules.hold_out},
    )


def calibration(state: ConfigState, _ward: Ward) -> Iterator[Ailment]:
    """Of positions called 0.6, do games end at 0.6 on average?"""
    newest = state.newest_model
    found = None if newest is None else newest.losses.get("calibration")
    if newest is None or not isinstance(found, Mapping):
        return
    if ailment := calibration_ailment(state.config, f"model {newest.number}", found):
        yield ailment


def calibration_ailment(config: str, who: str, found: Mapping[str, Any]) -> Ailment | None:
    """What the table of a model says; None if it is fine or there are too few rows."""
    rows = sum(int(each["rows"]) for each in found.get("bins", ()))
    error, bias = float(found.get("error", 0.0)), float(found.get("bias", 0.0))
    if rows < CALIBRATION_ROWS_MIN or error < CALIBRATION_WARNING:
        return None
    direction = "too hopeful" if bias > error / 2 else "too gloomy" if bias < -error / 2 else "off both ways"
    return Ailment(
        level=Level.PROBLEM if error >= CALIBRATION_PROBLEM else Level.WARNING,
        text=f"values of {who} of {config} are {error:.2f} off on {rows:,} held-out positions, {direction}",
        advice="More and fresher games, or a lower value_mix; else look for values of a wrong sign or seat.",
        evidence={"error": error, "bias": bias, "rows": rows},
    )


def losses(state: ConfigState, _ward: Ward) -> Iterator[Ailment]:
    newest = state.newest_model
    if newest is None:
        return
    train, held = newest.losses.get("train"), newest.losses.get("held")
    numbers = [value for part in (train, held) if isinstance(part, Mapping) for value in part.values()]
    if any(isinstance(value, float) and not math.isfinite(value) for value in numbers):
        yield Ailment(
            level=Level.PROBLEM,
            text=f"the loss of model {newest.number} of {state.config} is no number",
            advice="Lower learning_rate in [learning].",
        )
    elif isinstance(train, Mapping) and isinstance(held, Mapping):
        seen, unseen = _total(train), _total(held)
        if seen > 0 and unseen > OVERFIT_TIMES * seen:
            yield Ailment(
                level=Level.WARNING,
                text=f"model {newest.number} of {state.config} has a loss of {unseen:.2f} on held-out games "
                f"and {seen:.2f} on those it was trained on: it learns them by heart",
                advice="Fewer steps_per_row in [learning.bucket], a smaller preset, or more games.",
                evidence={"train": seen, "held": unseen},
            )


def ratio(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    """Training is paid for by new rows: neither much more nor much less than they earn."""
    bucket, rules = state.bucket, ward.rules.bucket
    if state.rows and bucket.spent > RATIO_HIGH * bucket.earned:
        yield Ailment(
            level=Level.PROBLEM,
            text=f"{state.config} was trained {bucket.spent / state.rows:.1f} times on each of its "
            f"{state.rows:,} rows; {rules.steps_per_row:g} times are paid for",
            advice="Let it play until the rows pay for it again; recalled rows count as never earned.",
            evidence={"spent": bucket.spent, "earned": bucket.earned},
        )
    elif bucket.earned and bucket.forfeited > FORFEITED_SHARE * bucket.earned:
        yield Ailment(
            level=Level.WARNING,
            text=f"{bucket.forfeited / bucket.earned:.0%} of what new rows of {state.config} earned was "
            "never trained: games come faster than training can use them",
            advice="More workers for training or a GPU, more simulations a move, or a larger chunk_steps.",
            evidence={"forfeited": bucket.forfeited, "earned": bucket.earned},
        )
    elif bucket.available > UNSPENT_CHUNKS * rules.chunk_steps and not state.open_of("train"):
        yield Ailment(
            level=Level.WARNING,
            text=f"new rows of {state.config} have earned {bucket.available / rules.chunk_steps:.1f} "
            "trainings that were not made",
            advice=f"`ringrift explain {state.config}` says what training waits for.",
            evidence={"available": bucket.available},
        )


def canary(state: ConfigState, ward: Ward) -> Iterator[Ailment]:
    """A stronger model solves more of the positions whose solution is known."""
    seen = [each for each in ward.diagnoses.get(state.config, ()) if each.canary and each.model]
    shares = [float(each.canary["kept"]) for each in seen if each.canary]
    if len(shares) < 2:
        return
    best, last = max(shares[:-1]), shares[-1]
    evidence = {"kept": shares[-CANARY_MODELS:], "best": best}
    if last < best - CANARY_DROP:
        yield Ailment(
            level=Level.PROBLEM,
            text=f"the newest model of {state.config} keeps {last:.0%} of the solved positions, an "
            f"earlier one {best:.0%}",
            advice="Compare the two with `ringrift models show`; if games agree, recall the newer one.",
            evidence=evidence,
        )
    elif (
        len(shares) >= CANARY_MODELS
        and max(shares[-CANARY_MODELS:]) - min(shares) < CANARY_GAIN
        and last < 0.95
    ):
        yield Ailment(
            level=Level.WARNING,
            text=f"{len(shares)} models of {state.config} keep no more of the solved positions ({last:.0%})",
            advice="Look at the search budget, the share of draws and the losses.",
            evidence=evidence,
        )


def _total(parts: Mapping[str, Any]) -> float:
    return math.fsum(float(parts[name]) for name in ("policy", "value") if name in parts)
