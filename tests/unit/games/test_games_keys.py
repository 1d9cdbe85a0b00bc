"""Config keys are strict, and games come from entry points, also those of other packages."""

import sys
from importlib.metadata import distributions

import pytest

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import ConfigKey, parse_config_key
from ringrift.games import registry
from ringrift.games.registry import game_names, load_game
from ringrift.work.shares import split_config


@pytest.mark.parametrize("board", ["square8", "hex8", "square19", "hexagonal", "connect_four"])
def test_a_key_names_board_and_players(board):
    for players in (2, 3, 4):
        key = parse_config_key(f"{board}_{players}p")
        assert key == ConfigKey(board, players)
        assert str(key) == f"{board}_{players}p"


WRONG_PLAYERS = [
    "square8",
    "square8_2",
    "square8_p",
    "square8_1p",
    "square8_5p",
    "square8_02p",
    "square8_-2p",
    "square8_٣p",
    "square8_9p",
]
WRONG_SPELLING = [
    "",
    "square8_2P",
    "Square8_2p",
    "square8_2p ",
    " square8_2p",
    "square8-2p",
    "_2p",
    "square8_2p\n",
]


@pytest.mark.parametrize("text", [*WRONG_PLAYERS, *WRONG_SPELLING])
def test_anything_else_is_refused(text):
    with pytest.raises(ConfigError):
        parse_config_key(text)
    assert split_config(text) == (text, None)


@pytest.mark.parametrize("key", ["square9_2p", "square8_2p_2p", "chess_2p", "open_chess:blitz"])
def test_an_unknown_game_says_what_there_is(key):
    with pytest.raises(ConfigError, match=r"there are connect_four, hex8, .*square8"):
        load_game(key)


def test_every_board_loads_for_every_number_of_players():
    for board in ("square8", "hex8", "square19", "hexagonal"):
        for players in (2, 3, 4):
            game = load_game(f"{board}_{players}p")
            assert (game.key, game.players) == (f"{board}_{players}p", players)
    with pytest.raises(ConfigError, match="2 players"):
        load_game("connect_four_3p")


def package(folder, name, entry):
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[ringrift.games]\n{entry}\n")


def test_another_package_brings_its_own_game(tmp_path, monkeypatch):
    package(tmp_path, "coin", "coin = coin_game:make")
    (tmp_path / "coin_game.py").write_text("def make(key):\n    return f'the game of {key}'\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "coin" in game_names()
    assert load_game("coin_3p") == "the game of coin_3p"
    assert load_game("coin:biased") == "the game of coin:biased"


def test_two_packages_with_the_same_game_are_an_error(tmp_path, monkeypatch):
    package(tmp_path, "other", "square8 = other_game:make")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="several packages"):
        load_game("square8_2p")


def test_a_job_looks_for_games_only_in_the_folder_that_is_its_own(tmp_path, monkeypatch):
    """Each has one, the first of its path; what lies in the other places was found by whoever forked it."""
    load_game("square8_2p")
    looked = []

    def counted(path):
        looked.extend(path)
        return distributions(path=path)

    monkeypatch.setattr(registry, "distributions", counted)
    for name in ("job-1", "job-2"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(sys, "path", [str(tmp_path / name), *sys.path])
        load_game("square8_2p")
        load_game("hex8_2p")
    assert looked == [str(tmp_path / "job-1"), str(tmp_path / "job-2")]


def test_of_a_package_that_is_there_twice_the_first_counts(tmp_path, monkeypatch):
    for place, made in (("first", "one"), ("second", "two")):
        package(tmp_path / place, "coin", f"coin = coin_{made}:make")
        (tmp_path / place / f"coin_{made}.py").write_text(f"def make(key):\n    return '{made}'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second"), *sys.path])
    assert load_game("coin_2p") == "one"
