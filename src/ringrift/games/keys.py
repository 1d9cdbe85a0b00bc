"""Config keys: `{board}_{n}p`, parsed strictly.

A key names a board and a number of players and nothing else. There is no default board and no default
player count: a wrong key is an error that says what would be right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringrift.errors import ConfigError

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
