"""What the facts of a config add up to, read for a command: models with ratings, promotions with evidence."""

from __future__ import annotations

from typing import Any

import msgspec

from ringrift.engine.ports import KeyValue
from ringrift.errors import ConfigError
from ringrift.learning.ledger import read_facts
from ringrift.learning.ratings import Rating, rate
from ringrift.learning.recall import learned_shards
from ringrift.learning.records import Model
from ringrift.learning.state import ConfigState, fold
from ringrift.learning.students import newest_student
from ringrift.learning.window import BucketRules

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
    if (in_use := newest_student(state, text)) is not None:
        found = [in_use]
    if len(found) != 1:
        what = f"{len(found)} models of {state.config} are" if found else f"no model of {state.config} is"
        raise ConfigError(f"{what} called {text!r}; `ringrift models {state.config}` lists them")
    return found[0]


def model_row(history: ConfigHistory, model: Model) -> dict[str, Any]:
    """What programs get of a model."""
    rated = history.ratings.get(model.digest)
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
