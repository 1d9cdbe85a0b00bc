"""A disk without space is said once, by whoever meets it first, and once when it is over."""

import errno
import os
from dataclasses import replace

import pytest
import structlog
from structlog.testing import capture_logs

from ringrift import files as full_disk_module
from ringrift.engine.sqlite.faults import translated_errors
from ringrift.errors import Corrupt, StorageFull, Unavailable
from ringrift.files import full_disk
from ringrift.runtime import prepare_line


async def test_a_database_without_room_is_said_once_and_again_when_there_is_room(config, opened, monkeypatch):
    monkeypatch.setattr(full_disk_module, "OVER_AFTER_S", 0.0)
    engine = await opened(replace(config, database_bytes_max=2**20))
    with capture_logs() as said:
        for number in range(20):
            try:
                await engine.kv.put(f"key/{number}", bytes(200_000))
            except StorageFull:
                continue
        assert full_disk().is_met
        for number in range(20):
            await engine.kv.delete(f"key/{number}")
        await engine.kv.put("small", b"1")
        assert not full_disk().is_met
    assert [line["event"] for line in said] == ["disk.full", "disk.has_room_again"]


def test_what_others_say_of_it_is_left_out_until_it_is_over(tmp_path):
    with pytest.raises(StorageFull), translated_errors(tmp_path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    again = {"event": "worker.renewal_failed", "error": "no space left for /data; try again in 30 s"}
    with pytest.raises(structlog.DropEvent):
        prepare_line(None, "error", dict(again))
    with pytest.raises(structlog.DropEvent):
        prepare_line(None, "error", {"event": "x", "exc_info": StorageFull("no room")})
    other = {"event": "daemon.failed", "error": "it is broken"}
    assert prepare_line(None, "error", dict(other)) == other
    assert full_disk().lines_left_out == 2


def test_a_full_disk_of_another_machine_is_told_as_what_it_is():
    line = {"event": "transfer.failed", "error": "the receiver says: No space left on device"}
    assert prepare_line(None, "error", dict(line)) == line


def test_conditions_are_told_without_a_traceback_and_bugs_with_one():
    line = prepare_line(None, "error", {"event": "x", "exc_info": Unavailable("nobody answers")})
    assert line == {"event": "x", "error": "nobody answers; try again in 1 s"}
    damage = Corrupt("a.db", found="the file is empty", advice="Restore a backup")
    line = prepare_line(None, "error", {"event": "x", "exc_info": damage})
    assert line == {"event": "x", "error": "a.db: the file is empty. Restore a backup"}
    bug = {"event": "x", "exc_info": KeyError("a")}
    assert prepare_line(None, "error", dict(bug)) == bug
