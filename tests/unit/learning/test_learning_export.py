"""Exports: what is known of them, and whether a file is whole."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from learning_story import Story

from ringrift.events.unified_router import UnifiedEventRouter
from ringrift.learning.export import (
    AutoExportDaemon,
    create_export_daemon,
    export_state,
    get_auto_export_daemon,
    quick_npz_check,
    validate_npz_structure,
)
from ringrift.learning.window_face import replay_window
from ringrift.work.scheduling_bell import get_bell


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
    assert get_bell().rung["NEW_GAMES_AVAILABLE"] == 1
    assert daemon.signals.value("hex8_2p", "NEW_GAMES_AVAILABLE", "new_games", 0) == 9
    daemon._unsubscribe()


def test_kinds_are_settings_of_one_thing():
    router = UnifiedEventRouter(enable_cross_process_polling=False)
    heard = {
        kind: set(create_export_daemon({"kind": kind}, router=router).wiring().subscribes)
        for kind in ("export", "combine", "cpu_jobs")
    }
    assert heard["combine"] == {"NPZ_EXPORT_COMPLETE"}
    assert "SELFPLAY_COMPLETE" in heard["export"]
    assert heard["cpu_jobs"] == set()
    assert get_auto_export_daemon() is create_export_daemon()
    assert isinstance(get_auto_export_daemon(), AutoExportDaemon)


# --- files ----------------------------------------------------------------------------------------------


def write(path, **arrays):
    np.savez(path, **arrays)
    return path


def test_a_whole_file(tmp_path):
    rows = {"features": np.zeros((7, 4, 3, 3), np.float32), "values": np.zeros(7, np.float32)}
    found = validate_npz_structure(write(tmp_path / "a.npz", **rows, policy_indices=np.zeros(3, np.int32)))
    assert found
    assert (found.sample_count, found.array_shapes["features"]) == (7, (7, 4, 3, 3))
    assert found.array_dtypes["values"] == "<f4"
    assert found.warnings == ()
    assert quick_npz_check(tmp_path / "a.npz") == (True, "7 samples")


@pytest.mark.parametrize(
    ("arrays", "error"),
    [
        ({"values": np.zeros(3)}, "the array features is missing"),
        ({"features": np.zeros((4, 2)), "values": np.zeros(3)}, "differ in their number of rows"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, arrays, error):
    ok, message = quick_npz_check(write(tmp_path / "a.npz", **arrays))
    assert not ok
    assert error in message


def test_a_stitched_file_that_claims_billions_of_rows_is_refused_without_loading_it(tmp_path):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (22_000_000_000,)}
    )
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("values.npy", header.getvalue())
        archive.writestr("features.npy", header.getvalue())
    found = validate_npz_structure(tmp_path / "a.npz")
    assert not found
    assert any("22000000000" in error for error in found.errors)


def test_missing_empty_and_cut_files(tmp_path):
    assert "is no file" in quick_npz_check(tmp_path / "none.npz")[1]
    (tmp_path / "empty.npz").write_bytes(b"")
    assert not quick_npz_check(tmp_path / "empty.npz")[0]
    whole = write(tmp_path / "a.npz", features=np.zeros((50, 9)), values=np.zeros(50)).read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    assert not quick_npz_check(tmp_path / "cut.npz")[0]


@given(st.binary(max_size=200) | st.sampled_from([b"5", b"{}", b"\x93NUMPY", b"{'shape': 5, 'descr': 1}"]))
def test_any_bytes_get_an_answer(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("values.npy", data)
        archive.writestr("features.npy", b"\x93NUMPY\x01\x00" + len(data).to_bytes(2, "little") + data)
    assert not validate_npz_structure(path).valid
