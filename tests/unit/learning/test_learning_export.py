"""Exports: what is known of them."""

from __future__ import annotations

from learning_story import Story

from ringrift.coordination.auto_export_daemon import (
    AutoExportDaemon,
    create_export_daemon,
    export_state,
    get_auto_export_daemon,
)
from ringrift.coordination.per_orchestrator import replay_window
from ringrift.coordination.run_coordinator import get_loop_waker
from ringrift.events.unified_router import UnifiedEventRouter


def test_the_state_of_exports_is_read_off_the_facts():
    story = Story("hex8_2p")
    empty = export_state(story.state)
    assert (empty.total_exports, empty.output_path, empty.rows_missing) == (0, None, 100)
    story.play(games=50, rows=2000)
    story.check()
    digest = story.export()
    story.play(games=25, rows=1000)
    story.check()
    found = export_state(story.state)
    assert (found.last_samples, found.last_games, found.total_exports) == (2000, 50, 1)
    assert (found.rows_since_last, found.games_since_last) == (1000, 25)
    assert found.output_path == f"blob:{digest}"
    assert not found.in_progress


def test_the_window_is_shown_as_the_replay_buffer():
    story = Story("hex8_2p")
    for _ in range(30):
        story.play(games=50, rows=2000)
    story.check()
    window = replay_window(story.state)
    assert window.rows_total == 60_000
    assert 25_000 < window.rows < 60_000
    assert (window.shards - 1) * 2000 < window.rows <= window.shards * 2000


async def test_new_games_wake_the_loop():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    daemon = create_export_daemon({"kind": "export"}, router=router)
    daemon._subscribe()
    await router.publish("NEW_GAMES_AVAILABLE", {"config_key": "hex8_2p", "node_id": "n", "new_games": 9})
    assert get_loop_waker().reasons["NEW_GAMES_AVAILABLE"] == 1
    assert daemon.signals.value("hex8_2p", "NEW_GAMES_AVAILABLE", "new_games", 0) == 9
    daemon._unsubscribe()


def test_kinds_are_settings_of_one_thing():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    heard = {
        kind: set(create_export_daemon({"kind": kind}, router=router).wiring().subscribes)
        for kind in ("export", "combine")
    }
    assert heard["combine"] == {"NPZ_EXPORT_COMPLETE"}
    assert "SELFPLAY_COMPLETE" in heard["export"]
    assert get_auto_export_daemon() is create_export_daemon()
    assert isinstance(get_auto_export_daemon(), AutoExportDaemon)
