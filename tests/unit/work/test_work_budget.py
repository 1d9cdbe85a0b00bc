"""The search budget follows games, rating, board and seats."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.work.shares import (
    board_and_players,
    games_needed,
    quality_factor,
    search_budget,
    split_config,
)


@pytest.mark.parametrize(
    ("config", "games", "rating", "budget"),
    [
        ("square8_2p", 0, None, 64),
        ("square8_2p", 100, None, 150),
        ("square8_2p", 999, 1900.0, 300),
        ("square8_2p", 1000, None, 800),
        ("square8_2p", 1000, 1399.0, 800),
        ("square8_2p", 1000, 1600.0, 1600),
        ("hex8_2p", 1000, 1800.0, 3200),
        ("hex8_4p", 1000, 1800.0, 2560),
        ("square19_2p", 499, None, 150),
        ("hexagonal_2p", 5000, 1900.0, 800),
        ("hexagonal_3p", 5000, 1900.0, 640),
    ],
)
def test_the_table(config: str, games: int, rating: float | None, budget: int) -> None:
    assert search_budget(config, games=games, rating=rating) == budget


@given(st.integers(0, 10**6), st.none() | st.floats(0, 3000), st.floats(-10, 10))
def test_intensity_is_bounded_and_the_floor_holds(games: int, rating: float | None, intensity: float) -> None:
    plain = search_budget("square8_3p", games=games, rating=rating)
    assert (
        16 <= search_budget("square8_3p", games=games, rating=rating, intensity=intensity) <= plain * 1.75 + 1
    )


def test_games_needed_shrink_to_nothing_at_the_target() -> None:
    assert games_needed("hex8_2p", rating=1900.0) == 0
    assert games_needed("hex8_2p", rating=1899.0) == 500
    assert games_needed("hexagonal_4p", rating=None) == 500_000


def test_unknown_quality_changes_nothing_and_poor_quality_asks_for_more() -> None:
    assert [quality_factor(q) for q in (None, 0.2, 0.4, 0.6, 0.9)] == [1.0, 1.5, 1.3, 1.0, 0.9]


def test_keys_of_other_games() -> None:
    assert board_and_players("connect_four_2p") == ("connect_four", 2)
    assert board_and_players("open_spiel:hex") == ("open_spiel:hex", 2)


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("square8_2p", ("square8", 2)),
        ("connect_four", ("connect_four", None)),
        ("hex8_2x", ("hex8_2x", None)),
        ("hex8_²p", ("hex8_²p", None)),
        ("open_spiel:hex(board_size=8)", ("open_spiel:hex(board_size=8)", None)),
        ("_2p", ("_2p", None)),
        ("", ("", None)),
    ],
)
def test_only_a_key_that_ends_with_a_number_of_players_is_cut(key, parts):
    assert split_config(key) == parts
