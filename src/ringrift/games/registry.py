"""Finding a game by its key.

Games are entry points of the group `ringrift.games`. The entry point's name is the board of a config key
(`square8` for `square8_2p`), or the family of a key with a colon (`open_spiel` for `open_spiel:hex`). Its
object takes the whole key and returns the game.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points

from ringrift.errors import ConfigError
from ringrift.games.contract import Game
from ringrift.games.keys import parse_config_key

GROUP = "ringrift.games"


def game_names() -> list[str]:
    """Boards and families that are installed."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_game(key: str) -> Game:
    """Return the game that *key* names; raises `ConfigError` that says what there is instead."""
    family, colon, _ = key.partition(":")
    name = family if colon else parse_config_key(key).board
    found = tuple(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(f"{key!r}: no game {name!r} is installed; there are {', '.join(game_names())}")
    if len({point.value for point in found}) > 1:
        places = ", ".join(sorted(point.value for point in found))
        raise ConfigError(f"{key!r}: several packages bring a game {name!r}: {places}")
    make: Callable[[str], Game] = found[0].load()
    return make(key)
