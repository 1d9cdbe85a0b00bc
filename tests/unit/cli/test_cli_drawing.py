"""What the terminal shows of a run, at any size."""

import asyncio
import io

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.live import Live

from ringrift.cli.drawing import curve_lines, decision_kind, draw_run, head_line, sparkline
from ringrift.cli.format import count, duration, effort
from ringrift.cli.run import LiveView, PlainView, has_display
from ringrift.control.run_options import RunOptions, default_workers, parse_configs, settle_run_options
from ringrift.coordination.daemon_manager import get_daemon_manager
from ringrift.engine.memory import memory_engine
from ringrift.health.run_status import Curve, StartStatus
from ringrift.testing.sample_run import TWELVE, SampleRun
from ringrift.testing.simulation import ManualRuntime


def drawn(status, *, width, height=40):
    terminal = Console(width=width, file=io.StringIO(), highlight=False)
    terminal.print(head_line(status, now_s=status.at_s))
    terminal.print(draw_run(status, now_s=status.at_s, width=width, height=height))
    return terminal.file.getvalue()


@pytest.mark.parametrize("configs", [(), ("square8_2p",), TWELVE])
@pytest.mark.parametrize("width", [30, 60, 90, 120, 200])
def test_the_picture_keeps_to_the_width_of_the_terminal(configs, width):
    shown = drawn(SampleRun(configs=configs).status(), width=width)
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= width


def test_the_picture_has_progress_speed_loss_curve_and_decisions():
    shown = drawn(SampleRun().status(), width=180)
    for words in ("190/512 games", "3.40 games/s", "2.128", "701 (674 to 728)", "the test says stronger"):
        assert words in shown
    assert any(0x2801 <= ord(character) <= 0x28FF for character in shown), "the curve is drawn"


def test_the_whole_picture_says_what_starting_of_jobs_takes():
    status = SampleRun().status()
    assert "starting jobs" not in drawn(status, width=120, height=None)
    status = msgspec.structs.replace(status, starting=StartStatus(share=0.034, median_s=0.62))
    told = (
        "starting jobs took 3.4% of the workers' time; the last ones played or learned after 0.6 s (median)"
    )
    assert told in drawn(status, width=120, height=None)


def test_who_plays_who_is_published_and_what_holds_learning_back_is_told_of_every_config():
    shown = drawn(SampleRun(configs=TWELVE[:2]).status(), width=140)
    told = "model 12 is published, model 15 plays: 3 trainings newer; held back by games: training waits 62%"
    for config in TWELVE[:2]:
        assert f"{config}: {told}" in shown


def test_what_searches_found_is_told_with_how_it_stands():
    status = SampleRun(configs=TWELVE[:1]).status()
    (config,) = status.configs
    found = "the next games are searched with c_scale 0.21 (on trial)"
    told = msgspec.structs.replace(status.configs[config], tuned=(found,))
    assert found in drawn(msgspec.structs.replace(status, configs={config: told}), width=240)


def test_a_low_terminal_gets_fewer_lines():
    status = SampleRun(configs=TWELVE).status()
    assert len(drawn(status, width=140, height=30).splitlines()) <= 36


def test_a_run_that_has_just_begun_is_drawn_too():
    shown = drawn(SampleRun(promotions=0, findings=False).status(), width=100)
    assert "square8_2p" in shown


def test_stages_that_wait_for_one_reason_are_told_together():
    shown = drawn(SampleRun(configs=TWELVE).status(), width=140)
    assert "square8_4p: Train waits: 3 failures in a row: out of memory (for 3 min 34 s)" in shown


points = st.tuples(st.floats(-500, 3000), st.floats(0, 200), st.floats(0, 1e6))


@given(st.lists(points, min_size=1, max_size=40), st.integers(12, 120), st.integers(2, 20))
def test_any_curve_is_drawn_within_its_box(history, width, height):
    at_s, curve = 0.0, []
    for rating, half, later_s in history:
        at_s += later_s
        curve.append(
            Curve(model="m", at_s=at_s, rows=1, rating=rating, low=rating - half, high=rating + half)
        )
    lines = curve_lines(curve, width=width, height=height)
    assert len(lines) == height
    assert {len(line) for line in lines} == {width}


def test_a_rising_curve_rises():
    curve = [
        Curve(model="m", at_s=i, rows=i, rating=100.0 * i, low=100.0 * i, high=100.0 * i) for i in range(10)
    ]
    lines = [line.plain[7:] for line in curve_lines(curve, width=47, height=6)]
    first = [next(i for i, c in enumerate(line) if c != "\u2800") for line in lines]
    assert first == sorted(first, reverse=True)
    assert sparkline([1, 2, 3, 4], width=3) == "▁▅█"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("promoted 3f9c", ("promoted", "3f9c")),
        ("took back 3f9c", ("took back", "3f9c")),
        ("train waits", ("waits", "Train")),
        ("a.train.000001 failed", ("failed", "a.train.000001")),
        ("selfplay", ("Self-play", "")),
    ],
)
def test_a_decision_is_a_deed_and_its_object(what, told):
    assert decision_kind(what) == told


def test_numbers_are_told_in_words():
    assert [duration(s) for s in (0, 59.6, 61, 3600, 90_000)] == [
        "0 s",
        "1 min",
        "1 min 1 s",
        "1 h",
        "1 d 1 h",
    ]
    assert [effort(s) for s in (None, 0.0, 0.0124, 12.34)] == ["-", "0", "12 ms", "12.3 s"]
    assert [effort(s) for s in (600, 20_000, 864_000)] == ["10.0 min", "5.6 h", "10.0 d"]
    assert [count(n) for n in (999, 43_100, 1_300_000)] == ["999", "43,100", "1.3M"]


def test_log_lines_tell_each_decision_once_and_the_numbers_now_and_then():
    runtime = ManualRuntime()
    run = SampleRun(now_s=runtime.now_s() + 1000, minutes=1)
    manager = get_daemon_manager()
    with structlog.testing.capture_logs() as said:
        view = PlainView(runtime)
        view.refresh(manager, run.status())
        view.refresh(manager, run.status())
        decided = [line for line in said if line["event"] == "run.decided"]
        assert len(decided) == len(run.status().decisions)
        assert decided[0]["reason"] == run.status().decisions[-1].reason, "oldest first"
        assert not [line for line in said if line["event"] == "run.config"]
        runtime.advance(31)
        view.refresh(manager, None)
        view.refresh(manager, run.status())
        runtime.advance(31)
        view.refresh(manager, run.status())
    assert [line["rating"] for line in said if line["event"] == "run.config"] == ["701 (674 to 728)"]


@pytest.mark.parametrize("run", [None, SampleRun(), SampleRun(configs=TWELVE)])
def test_the_live_view_draws_with_and_without_a_status(tmp_path, run):
    terminal = Console(width=100, height=40, file=io.StringIO(), force_terminal=True)
    view = LiveView(Live(console=terminal, auto_refresh=False), tmp_path, tmp_path / "log", ManualRuntime())
    terminal.print(view.status_view(get_daemon_manager(), None if run is None else run.status()))
    assert "ringrift run" in terminal.file.getvalue()


# --- options --------------------------------------------------------------------------------------------


def settled(*asked):
    async def settle():
        engine = memory_engine(ManualRuntime())
        try:
            return [await settle_run_options(engine.kv, options) for options in asked]
        finally:
            await engine.close()

    return asyncio.run(settle())


def test_an_empty_folder_gets_the_default_and_a_worker_a_core():
    (choice,) = settled(RunOptions())
    assert (choice.configs, choice.configs_why) == (("square8_2p",), "the default")
    assert choice.workers == default_workers()[0] >= 1


def test_a_run_goes_on_with_the_configs_it_had_unless_others_are_asked_for():
    asked = RunOptions(configs=("hex8_2p", "connect_four_2p"), workers=3)
    first, second, third = settled(asked, RunOptions(), RunOptions(configs=("hex8_2p",)))
    assert (first.workers, first.workers_why) == (3, "as asked")
    assert (second.configs, second.configs_why) == (asked.configs, "as before")
    assert third.configs == ("hex8_2p",)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("square8_2p", ("square8_2p",)),
        (" hex8_2p , hex8_2p,connect_four_2p ", ("hex8_2p", "connect_four_2p")),
        (
            "open_spiel:hex(board_size=5,swap=True),hex8_4p",
            ("open_spiel:hex(board_size=5,swap=True)", "hex8_4p"),
        ),
    ],
)
def test_configs_are_split_at_the_commas_between_them(text, keys):
    assert parse_configs(text) == keys


@pytest.mark.parametrize(
    ("environ", "opens"),
    [
        ({}, False),
        ({"DISPLAY": ":0"}, True),
        ({"WAYLAND_DISPLAY": "w"}, True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, False),
    ],
)
def test_a_browser_is_opened_only_in_front_of_somebody(monkeypatch, environ, opens):
    monkeypatch.setattr("sys.platform", "linux")
    assert has_display(environ) is opens
