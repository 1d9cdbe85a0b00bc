"""Finding a game by its key.

Games are entry points of the group `ringrift.games`. The entry point's name is the board of a config key
(`square8` for `square8_2p`), or the family of a key with a colon (`open_spiel` for `open_spiel:hex`). Its
object takes the whole key and returns the game.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points

from ringrift.errors import ConfigError
from ringrift.games.contract import Game

# Config keys: `{board}_{n}p`, parsed strictly.
#
# A key names a board and a number of players and nothing else. There is no default board and no default
# player count: a wrong key is an error that says what would be right.


PLAYERS_MIN, PLAYERS_MAX = 2, 4
_KEY = re.compile(r"(?P<board>[a-z][a-z0-9_]*)_(?P<players>[0-9]+)p")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A board and a number of players."""

    board: str
    players: int

    def __str__(self) -> str:
        return f"{self.board}_{self.players}p"


def parse_config_key(text: str) -> ConfigKey:
    """Split *text* into board and players; raises `ConfigError` for anything but `{board}_{n}p`."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is no config key: expected {{board}}_{{n}}p, such as square8_2p")
    digits = found["players"]
    players = int(digits)
    if not PLAYERS_MIN <= players <= PLAYERS_MAX or digits != str(players):
        raise ConfigError(f"{text!r}: players must be {PLAYERS_MIN} to {PLAYERS_MAX}, not {digits}")
    return ConfigKey(board=found["board"], players=players)


GROUP = "ringrift.games"
COMPILED = ("ringrift.games.ringrift.game", "ringrift.games.connect_four.game")


def game_names() -> list[str]:
    """Boards and families that are installed."""
    return sorted({point.name for point in _installed(_places())})


def _places() -> tuple[tuple[str, int], ...]:
    """Where packages lie, each with the time of its last change."""
    places = []
    for place in sys.path:
        try:
            places.append((place, os.stat(place or ".").st_mtime_ns))
        except OSError:
            places.append((place, 0))
    return tuple(places)


@lru_cache(maxsize=1)
def _installed(places: tuple[tuple[str, int], ...]) -> EntryPoints:
    """What is installed in *places*. Looking for it takes longer than loading a game."""
    del places
    return entry_points(group=GROUP)


def _name(key: str) -> str:
    family, colon, _ = key.partition(":")
    return family if colon else parse_config_key(key).board


def _points(key: str) -> tuple[EntryPoint, ...]:
    return tuple(_installed(_places()).select(name=_name(key)))


def is_compiled(key: str) -> bool:
    """Whether *key* names a game of ours that is loaded without running code of other packages."""
    found = _points(key)
    return bool(found) and all(point.module in COMPILED for point in found)


def load_game(key: str) -> Game:
    """Return the game that *key* names; raises `ConfigError` that says what there is instead."""
    found = _points(key)
    if not found:
        raise ConfigError(
            f"{key!r}: no game {_name(key)!r} is installed; there are {', '.join(game_names())}"
        )
    if len({point.value for point in found}) > 1:
        places = ", ".join(sorted(point.value for point in found))
        raise ConfigError(f"{key!r}: several packages bring a game {_name(key)!r}: {places}")
    make: Callable[[str], Game] = found[0].load()
    return make(key)
