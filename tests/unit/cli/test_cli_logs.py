"""The log file of a control process that runs for months."""

import json

import structlog

from ringrift.cli import logs


def test_the_log_keeps_its_bound_and_its_newest_lines(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "LOG_BYTES_MAX", 2_000)
    path = tmp_path / "logs" / "control.log"
    file = logs.log_to_file(path)
    for number in range(500):
        structlog.get_logger().info("counted", number=number)
    file.close()
    kept = sorted(path.parent.iterdir())
    assert [found.name for found in kept] == ["control.log", "control.log.1"]
    assert all(found.stat().st_size < 2_200 for found in kept)
    numbers = [
        json.loads(line)["number"] for found in reversed(kept) for line in found.read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 500))


def test_a_full_disk_stops_nobody_who_logs(tmp_path):
    (tmp_path / "control.log").symlink_to("/dev/full")
    file = logs.log_to_file(tmp_path / "control.log")
    structlog.get_logger().info("said into the void")
    assert file.lines_lost == 1
    file.close()
