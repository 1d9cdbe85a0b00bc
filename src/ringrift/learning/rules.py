"""The numbers that the loop goes by: one place, with the reason where a number is not obvious."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ringrift.errors import ConfigError
from ringrift.learning.promotion import PromotionRules
from ringrift.learning.window import BucketRules

Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class LearningRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a config is played, trained and judged. The table `[learning]` of the config file."""

    preset: Literal["small", "medium", "large"] = "small"
    simulations: Positive = 32
    evaluation_simulations: Positive = 32
    selfplay_job_s: Seconds = 45.0  # long enough that starting a process is a few percent at most
    selfplay_games_first: Positive = 32  # while nothing is measured
    selfplay_slots: Positive = 64
    batch: Positive = 256
    learning_rate: Annotated[float, Meta(gt=0)] = 2e-3
    learning_rate_steps: Positive = 1_000  # after so many steps the rate falls with the root of the steps
    value_mix: Annotated[float, Meta(ge=0, le=1)] = 0.8
    hold_out: Annotated[float, Meta(ge=0, le=0.5)] = 0.05
    window_base: Annotated[int, Meta(ge=0)] = 0  # rows; 0: by the board
    bucket: BucketRules = BucketRules(chunk_steps=40_000, cap_steps=160_000, rows_first_min=4_000)
    evaluation_games: Positive = 64  # of one job that somebody asked for
    rating_games: Positive = 40
    rating_opponents: tuple[str, ...] = ("random", "mcts:32")
    # The most one-sided match crosses the bound of the test after 68 games: let one job be enough for it.
    promotion: PromotionRules = PromotionRules(chunk_games=80)
    job_attempts: Positive = 3
    retry_s: Seconds = 10.0  # after the first failure of a stage; doubles with each
    breaker_failures: Positive = 5
    breaker_s: Seconds = 300.0


def learning_rules(table: Mapping[str, Any]) -> LearningRules:
    """Read the table; raises `ConfigError` that names what is wrong."""
    try:
        return msgspec.convert(table, LearningRules)
    except msgspec.ValidationError as error:
        raise ConfigError(f"[learning] in the config file: {error}") from None
