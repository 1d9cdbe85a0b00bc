"""The restart authority and the cascade breaker, as pure decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.daemons.restarts import (
    FORGIVEN_AFTER_S,
    GLOBAL_LIMIT,
    HOUR_S,
    LIMITS,
    STARTUP_S,
    CascadeBreaker,
    JsonLedger,
    RestartLedger,
    RestartPolicy,
    RestartRecord,
    clear,
    on_crash,
)
from ringrift.daemons.types import DaemonCategory, DaemonType, RestartTier
from ringrift.errors import ConfigError
from ringrift.runtime import SystemRuntime

NOW_S = 1_700_000_000.0


def delays(policy: RestartPolicy, *, crashes: int, ran_s: float = 0.0) -> list[float | None]:
    record, waits, now_s = RestartRecord(), [], NOW_S
    for _ in range(crashes):
        record, verdict = on_crash(record, policy, now_s=now_s, ran_s=ran_s, luck=0.0, error="x")
        waits.append(verdict.restart_after_s)
        now_s += (verdict.restart_after_s or 0.0) + ran_s
    return waits


def test_short_runs_wait_twice_as_long_each_time_and_are_then_given_up() -> None:
    assert delays(RestartPolicy(cooldown_s=0), crashes=6) == [5, 10, 20, 40, 80, None]


def test_the_wait_is_bounded_and_at_least_the_cooldown() -> None:
    assert delays(RestartPolicy(max_restarts=9, cooldown_s=7), crashes=8) == [
        5,
        10,
        20,
        40,
        80,
        160,
        300,
        300,
    ]
    assert delays(RestartPolicy(delay_s=1, cooldown_s=10), crashes=3) == [1, 10, 10]


def test_the_crash_of_a_healthy_run_is_answered_at_once_but_counts_against_the_hour() -> None:
    policy = RestartPolicy(max_restarts=5, stable_s=60, cooldown_s=10)
    assert delays(policy, crashes=11, ran_s=60.0) == [0.0] * 10 + [None]
    assert delays(policy, crashes=50, ran_s=HOUR_S / 9) == [0.0] * 50


def test_a_critical_daemon_is_never_given_up_only_tried_rarely() -> None:
    policy = RestartPolicy(max_restarts=2, degraded_retry_s=1800, cooldown_s=0)
    assert delays(policy, crashes=5) == [5, 10, 1800, 1800, 1800]


def test_a_crash_loop_is_told_once() -> None:
    record, told = RestartRecord(), []
    for index in range(5):
        record, verdict = on_crash(
            record, RestartPolicy(max_restarts=9), now_s=NOW_S + index, ran_s=0, luck=0, error="x"
        )
        told.append(verdict.crash_loop)
        assert verdict.tier is (RestartTier.ELEVATED if index >= 2 else RestartTier.NORMAL)
    assert told == [False, False, True, False, False]


def test_what_failed_for_good_is_forgiven_after_a_day_or_by_hand() -> None:
    record, verdict = on_crash(
        RestartRecord(), RestartPolicy(max_restarts=0), now_s=NOW_S, ran_s=0, luck=0, error="x"
    )
    assert verdict.restart_after_s is None
    assert record.failed_for_good(now_s=NOW_S + FORGIVEN_AFTER_S - 1)
    assert not record.failed_for_good(now_s=NOW_S + FORGIVEN_AFTER_S)
    assert not clear(record).failed_for_good(now_s=NOW_S)


@given(
    steps=st.lists(
        st.tuples(st.floats(0, 500), st.floats(0, 4000), st.floats(-1, 1)), min_size=1, max_size=200
    ),
    max_restarts=st.integers(0, 8),
    critical=st.booleans(),
)
def test_restarts_stay_within_the_budget_whatever_happens(
    steps: list[tuple[float, float, float]], max_restarts: int, critical: bool
) -> None:
    policy = RestartPolicy(max_restarts=max_restarts, degraded_retry_s=1800 if critical else None)
    record, now_s, restarts = RestartRecord(), NOW_S, []
    for ran_s, idle_s, luck in steps:
        now_s += ran_s + idle_s
        record, verdict = on_crash(record, policy, now_s=now_s, ran_s=ran_s, luck=luck, error="x")
        if verdict.restart_after_s is None:
            assert not critical
            return
        assert 0 <= verdict.restart_after_s <= max(policy.delay_s_max * 1.1, 1800)
        if verdict.tier is not RestartTier.DEGRADED:
            restarts.append(now_s)
        assert sum(1 for at_s in restarts if at_s > now_s - HOUR_S) <= policy.hourly_max
        assert len(record.recent_s) <= policy.hourly_max


def test_a_wall_clock_that_jumps_back_does_not_freeze_the_count() -> None:
    record = RestartRecord(recent_s=(NOW_S + 9999,))
    record, _ = on_crash(record, RestartPolicy(), now_s=NOW_S, ran_s=0, luck=0, error="x")
    assert record.recent_s == (NOW_S,)


@pytest.mark.parametrize("wrong", [{"max_restarts": -1}, {"delay_s": 400}, {"jitter_share": 1.0}])
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RestartPolicy(**wrong)  # type: ignore[arg-type]


async def test_the_ledger_file_keeps_records_for_a_day_and_survives_damage(tmp_path: Path) -> None:
    store = JsonLedger(tmp_path / "deep" / "daemon_restarts.json")
    assert store.load(now_s=NOW_S) == {}
    record = RestartRecord(2, (NOW_S - 5, NOW_S), NOW_S, 7, "broken")
    await store.save({"auto_sync": record}, now_s=NOW_S)
    assert store.load(now_s=NOW_S + 10) == {"auto_sync": record}
    assert store.load(now_s=NOW_S + FORGIVEN_AFTER_S) == {}
    for damaged in (
        b"{half",
        b'{"counts":{"\xff":1}}',
        b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ):
        (tmp_path / "deep" / "daemon_restarts.json").write_bytes(damaged)
        assert store.load(now_s=NOW_S) == {}


async def test_two_managers_on_one_ledger_file_keep_each_others_records(tmp_path: Path) -> None:
    path = tmp_path / "daemon_restarts.json"
    ledgers = [RestartLedger(JsonLedger(path), SystemRuntime()) for _ in range(4)]
    for ledger in ledgers:
        assert (
            ledger.record(DaemonType.AUTO_SYNC) == RestartRecord()
        )  # each has read the file before any other wrote
    types = [DaemonType.register(f"LEDGER_{number}") for number in range(20)]
    for number, daemon_type in enumerate(types):
        ledgers[number % 4].crashed(daemon_type, RestartPolicy(), ran_s=1.0, error=f"crash {number}")
    for ledger in ledgers:
        await ledger.flush(timeout_s=30)
        assert ledger.store_failures == 0
    kept = JsonLedger(path).load(now_s=SystemRuntime().now_s())
    assert {name: record.last_error for name, record in kept.items()} == {
        str(daemon_type): f"crash {number}" for number, daemon_type in enumerate(types)
    }


async def test_a_record_that_could_not_be_written_is_written_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "daemon_restarts.json"
    path.parent.write_text("a file where the folder should be")
    ledger = RestartLedger(JsonLedger(path), SystemRuntime())
    first, second = DaemonType.register("LEDGER_FIRST"), DaemonType.register("LEDGER_SECOND")
    ledger.crashed(first, RestartPolicy(), ran_s=1.0, error="x")
    await ledger.flush(timeout_s=30)
    assert ledger.store_failures == 1
    path.parent.unlink()
    ledger.crashed(second, RestartPolicy(), ran_s=1.0, error="y")
    await ledger.flush(timeout_s=30)
    assert set(JsonLedger(path).load(now_s=SystemRuntime().now_s())) == {str(first), str(second)}


def test_a_category_that_keeps_crashing_waits_and_others_do_not() -> None:
    breaker, now_s = CascadeBreaker(started_s=0.0), STARTUP_S + 1
    tripped = [breaker.record(DaemonCategory.PROVIDER, now_s=now_s) for _ in range(3)]
    assert [len(found) for found in tripped] == [0, 0, 1]
    until_s, reason = breaker.blocked(DaemonCategory.PROVIDER, critical=False, now_s=now_s)
    assert until_s == now_s + LIMITS[DaemonCategory.PROVIDER].cooldown_s
    assert "provider" in reason
    assert breaker.blocked(DaemonCategory.PROVIDER, critical=True, now_s=now_s) == (0.0, "")
    assert breaker.blocked(DaemonCategory.SYNC, critical=False, now_s=now_s) == (0.0, "")
    assert breaker.blocked(DaemonCategory.PROVIDER, critical=False, now_s=until_s) == (0.0, "")
    assert breaker.status(now_s=now_s) == {"provider": 120.0}


def test_nothing_is_blocked_while_everything_starts() -> None:
    breaker = CascadeBreaker(started_s=0.0)
    for _ in range(100):
        assert breaker.record(DaemonCategory.MISC, now_s=1.0) == []
    assert breaker.blocked(DaemonCategory.MISC, critical=False, now_s=1.0) == (0.0, "")


def test_too_many_crashes_everywhere_stop_all_but_the_exempt() -> None:
    breaker, now_s = CascadeBreaker(started_s=-STARTUP_S), 0.0
    kinds = [DaemonCategory.SYNC, DaemonCategory.HEALTH, DaemonCategory.QUEUE, DaemonCategory.RESOURCE]
    for index in range(GLOBAL_LIMIT.restarts):
        breaker.record(kinds[index % len(kinds)], now_s=now_s)
    assert breaker.blocked(DaemonCategory.DISTRIBUTION, critical=False, now_s=now_s)[0] > 0
    assert breaker.blocked(DaemonCategory.EVENT, critical=False, now_s=now_s) == (0.0, "")
