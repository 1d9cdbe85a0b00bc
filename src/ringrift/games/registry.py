"""Finding a game by its key.

Games are entry points of the group `ringrift.games`. The entry point's name is the board of a config key
(`square8` for `square8_2p`), or the family of a key with a colon (`open_spiel` for `open_spiel:hex`). Its
object takes the whole key and returns the game.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, distributions

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import parse_config_key
from ringrift.games.contract import Game

GROUP = "ringrift.games"
_PLACES_MAX = 64  # in a path; more of them are looked through again each time
COMPILED = ("ringrift.games.ringrift.game", "ringrift.games.connect_four")


def game_names() -> list[str]:
    """Boards and families that are installed."""
    return sorted({point.name for point in _installed()})


def _installed() -> list[EntryPoint]:
    """The games of all packages in the places of `sys.path`; of a package that is there twice, the first."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for place in sys.path:
        try:
            changed_ns = os.stat(place or ".").st_mtime_ns
        except OSError:  # there is no such folder
            continue
        for package, points in _installed_in(place, changed_ns):
            found.setdefault(package, points)
    return [point for points in found.values() for point in points]


@lru_cache(maxsize=_PLACES_MAX)
def _installed_in(place: str, changed_ns: int) -> tuple[tuple[str, tuple[EntryPoint, ...]], ...]:
    """Each package in *place*, a folder as it was last changed, that brings games, with them.

    Looking for them takes longer than loading a game, and every job has a folder of its own in its path: so
    each place is kept by itself, and a job that was forked looks only through its folder.
    """
    del changed_ns
    found = ((each, tuple(each.entry_points.select(group=GROUP))) for each in distributions(path=[place]))
    return tuple((str(package.metadata["Name"]), points) for package, points in found if points)


def _name(key: str) -> str:
    family, colon, _ = key.partition(":")
    return family if colon else parse_config_key(key).board


def _points(key: str) -> tuple[EntryPoint, ...]:
    name = _name(key)
    return tuple(point for point in _installed() if point.name == name)


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
