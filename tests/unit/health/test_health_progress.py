"""The progress watchdog: late by its own measure, and able to say why."""

from __future__ import annotations

import msgspec
import pytest

from ringrift.coordination.progress_watchdog import (
    ProgressRecords,
    ProgressWatchdog,
    StallDetector,
    velocity_per_hour,
)
from ringrift.engine.memory import memory_engine
from ringrift.events.catalog.table import CATALOG
from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.health.run_status import STATUS_KEY, ConfigStatus, Curve, RunStatus
from ringrift.testing.sample_run import idle_config, idle_run
from ringrift.testing.simulation import ManualRuntime

CONFIG = "square8_2p"


def run_of(seen: ConfigStatus, *, at_s: float = 0.0, state: str = "running") -> RunStatus:
    return idle_run(at_s=at_s, state=state, configs={CONFIG: seen})


def watch(pace_s: float, silence_s: float, **fields) -> tuple[ProgressRecords, list]:
    """Games come every *pace_s* ten times, then nothing for *silence_s*."""
    book, now_s, told = ProgressRecords(), 0.0, []
    for number in range(10):
        now_s += pace_s
        told += book.look(run_of(idle_config(games=number)), now_s)
    end_s = now_s + silence_s
    while now_s < end_s:
        now_s = min(end_s, now_s + 30.0)
        told += book.look(run_of(idle_config(games=9, **fields)), now_s)
    return book, told


@pytest.mark.parametrize(
    ("pace_s", "silence_s", "stalled"),
    [(20.0, 290.0, False), (20.0, 310.0, True), (600.0, 2300.0, False), (600.0, 2500.0, True)],
)
def test_late_is_measured_by_the_configs_own_pace(pace_s, silence_s, stalled):
    book, told = watch(pace_s, silence_s)
    assert book.verdicts[CONFIG].stalled is stalled
    assert [name for name, _ in told] == (["PROGRESS_STALL_DETECTED"] if stalled else [])


def test_a_stall_is_told_once_per_tier_and_its_end_once():
    book, told = watch(20.0, 7200.0)
    tiers = [payload["escalation_tier"] for _, payload in told]
    assert tiers == [1, 2, 3]
    told = book.look(run_of(idle_config(games=10)), 7500.0)
    assert [name for name, _ in told] == ["PROGRESS_RECOVERED"]
    assert book.look(run_of(idle_config(games=11)), 7510.0) == []


def test_the_reason_names_the_block():
    blocked = {"train": {"reason": "train failed 5 times in a row: no space", "until_s": 1e9}}
    book, _ = watch(20.0, 600.0, blocked=blocked)
    assert "train is blocked: train failed 5 times" in book.verdicts[CONFIG].reason


def test_a_pause_is_no_stall():
    book, told = watch(20.0, 7200.0, stage="paused")
    assert not told
    assert not book.stalled


def paced_until_200_s() -> ProgressRecords:
    """Games every 20 s, and a rating."""
    book = ProgressRecords()
    for number in range(1, 11):
        assert not book.look(run_of(idle_config(games=number, rating=1500.0)), number * 20.0)
    return book


@pytest.mark.parametrize(("state", "stage"), [("paused", ""), ("stopped", ""), ("running", "paused")])
def test_the_time_of_a_pause_counts_neither_as_idle_nor_as_flat(state, stage):
    book, still = paced_until_200_s(), idle_config(games=10, rating=1500.0)
    for now_s in range(230, 36_230, 30):
        book.look(run_of(idle_config(games=10, rating=1500.0, stage=stage), state=state), float(now_s))
    resumed_s = 36_200.0
    assert not book.look(run_of(still), resumed_s + 290.0)
    ((event, payload),) = book.look(run_of(still), resumed_s + 310.0)
    assert (event, payload["escalation_tier"]) == ("PROGRESS_STALL_DETECTED", 1)


def test_the_time_of_a_pause_is_no_pace():
    book = paced_until_200_s()
    for number in range(11, 21):
        for now_s in (number * 40_000.0 - 60.0, number * 40_000.0):
            book.look(run_of(idle_config(games=number - 1), state="paused"), now_s)
        book.look(run_of(idle_config(games=number)), number * 40_000.0 + 20.0)
    assert book.look(run_of(idle_config(games=20)), 20 * 40_000.0 + 330.0)


def test_a_rating_that_does_not_rise_for_six_hours_is_a_stall():
    book = ProgressRecords()
    for minute in range(6 * 60 + 2):
        seen = idle_config(games=minute, rating=1500.0, rating_interval=(1480.0, 1520.0))
        told = book.look(run_of(seen), minute * 60.0)
    assert [name for name, _ in told] == ["PROGRESS_STALL_DETECTED"]
    assert "has not risen above 1500" in book.verdicts[CONFIG].reason


def test_velocity_keeps_its_precision_far_from_the_epoch():
    curve = [
        Curve(model="m", at_s=1.7e9 + second, rows=0, rating=1500 + 0.3 * second, low=0.0, high=9e9)
        for second in range(61)
    ]
    assert velocity_per_hour(curve) == pytest.approx(1080.0)
    assert velocity_per_hour(curve[:1]) is None


async def test_the_daemon_tells_what_the_status_shows():
    runtime, heard = ManualRuntime(), []
    engine = memory_engine(runtime)
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    router.subscribe("PROGRESS_STALL_DETECTED", lambda event: heard.append(event.payload), "t")
    dog = ProgressWatchdog(runtime=runtime, router=router, kv=engine.kv)
    for _ in range(40):
        seen = run_of(idle_config(games=1), at_s=runtime.now_s())
        await engine.kv.put(STATUS_KEY, msgspec.json.encode(seen))
        await dog._run_cycle()
        runtime.advance(30.0)
    assert [each["escalation_tier"] for each in heard] == [1]
    assert not CATALOG["PROGRESS_STALL_DETECTED"].problems(heard[0])
    await engine.close()


async def test_the_time_of_an_old_status_counts_against_no_config():
    runtime = ManualRuntime()
    engine = memory_engine(runtime)
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    dog = ProgressWatchdog(runtime=runtime, router=router, kv=engine.kv)
    for minute in range(602):
        # The run is gone for ten hours, and back with the state that it had.
        if minute in (0, 601):
            seen = run_of(idle_config(games=1), at_s=runtime.now_s())
            await engine.kv.put(STATUS_KEY, msgspec.json.encode(seen))
        await dog._run_cycle()
        runtime.advance(60.0)
    assert not dog.records.stalled
    await engine.close()


def test_an_operation_that_falls_silent_is_stalled():
    now = {"s": 0.0}
    detector = StallDetector(lambda: now["s"], silent_s=10.0)
    detector.report("export")
    detector.report("train", silent_s=100.0)
    now["s"] = 50.0
    assert detector.stalled() == {"export": 50.0}
    assert detector.end("export")
    assert detector.stalled() == {}
