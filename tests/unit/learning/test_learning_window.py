"""The replay window and the train bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.errors import ConfigError
from ringrift.learning.facts.records import (
    BucketRules,
    Shard,
    ShardState,
    TrainBucket,
    base_rows,
    earn,
    growth_of,
    rows_missing,
    shards_in_window,
    spend,
    steps_to_train,
    window_rows,
    withdraw,
)


def shard(number: int, rows: int, state: ShardState = ShardState.CHECKED) -> Shard:
    return Shard(
        digest=f"d{number}",
        job_id=f"j{number}",
        name=f"s{number}",
        state=state,
        games=rows // 40,
        rows=rows,
        model=None,
        simulations=64,
        worker="w",
        made_s=float(number),
        cpu_s=1.0,
    )


def test_the_window_has_katagos_size() -> None:
    # 250,000 rows of a million: c (1 + 0.4 ((N/c)^0.75 - 1) / 0.75)
    assert window_rows(1_000_000, base=250_000) == pytest.approx(493_790, rel=0.01)
    assert window_rows(250_000, base=250_000) == 250_000
    assert window_rows(10, base=250_000) == 10
    assert window_rows(1_000_000, base=50_000, growth=growth_of("connect_four_2p")) == 50_000
    assert window_rows(1_000_000, base=50_000, growth=growth_of("square8_2p")) > 200_000


@given(total=st.integers(0, 10**8), more=st.integers(0, 10**6), base=st.integers(1, 10**6))
def test_the_window_grows_but_never_faster_than_the_data(total: int, more: int, base: int) -> None:
    before, after = window_rows(total, base=base), window_rows(total + more, base=base)
    assert 0 <= before <= total
    assert before <= after <= before + more + 1


@given(
    st.lists(st.tuples(st.integers(0, 5000), st.sampled_from(ShardState)), max_size=60),
    st.integers(1, 20_000),
)
def test_the_newest_checked_shards_fill_the_window(parts: list[tuple[int, ShardState]], base: int) -> None:
    shards = [shard(n, rows, state) for n, (rows, state) in enumerate(parts)][::-1]
    usable = [s for s in shards if s.state is ShardState.CHECKED and s.rows]
    total = sum(s.rows for s in usable)
    taken = shards_in_window(shards, total, base=base)
    assert list(taken) == usable[: len(taken)]
    assert sum(s.rows for s in taken) >= window_rows(total, base=base)
    if taken:
        assert sum(s.rows for s in taken[:-1]) < window_rows(total, base=base)


def test_boards_with_longer_games_have_larger_windows() -> None:
    assert base_rows("hexagonal_4p") > base_rows("square19_2p") > base_rows("square8_2p")
    assert base_rows("connect_four_2p") > 0


RULES = BucketRules(chunk_steps=1000, cap_steps=5000, rows_first_min=100)


def test_training_without_new_rows_is_never_paid_for() -> None:
    bucket = spend(earn(TrainBucket(), 250, RULES), 1000)
    assert steps_to_train(bucket, RULES, rows_total=10**9, has_model=True) == 0
    assert rows_missing(bucket, RULES, rows_total=10**9, has_model=True) == 250
    assert steps_to_train(earn(bucket, 250, RULES), RULES, rows_total=10**9, has_model=True) == 1000


def test_the_first_network_waits_for_enough_rows_only() -> None:
    few, enough = earn(TrainBucket(), 99, RULES), earn(TrainBucket(), 100, RULES)
    assert steps_to_train(few, RULES, rows_total=99, has_model=False) == 0
    assert rows_missing(few, RULES, rows_total=99, has_model=False) == 1
    assert steps_to_train(enough, RULES, rows_total=100, has_model=False) == 400


ACTIONS = st.lists(
    st.tuples(st.sampled_from(("earn", "train", "withdraw")), st.integers(0, 3000)), max_size=60
)


@given(ACTIONS)
def test_steps_are_conserved_and_the_bucket_is_bounded(actions: list[tuple[str, int]]) -> None:
    bucket, rows = TrainBucket(), 0
    for action, amount in actions:
        if action == "earn":
            bucket, rows = earn(bucket, amount, RULES), rows + amount
        elif action == "withdraw":
            taken = min(rows, amount)
            bucket, rows = withdraw(bucket, taken, RULES), rows - taken
        elif steps := steps_to_train(bucket, RULES, rows_total=rows, has_model=True):
            bucket = spend(bucket, steps)
        assert bucket.available <= RULES.cap_steps + 1e-6
        assert bucket.earned == pytest.approx(rows * 4)
        assert bucket.earned == pytest.approx(bucket.spent + bucket.forfeited + bucket.available)
        assert bucket.forfeited >= -1e-6


def test_unsafe_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="never holds a chunk"):
        BucketRules(chunk_steps=10, cap_steps=5)
    with pytest.raises(ConfigError):
        BucketRules(steps_per_row=0)
