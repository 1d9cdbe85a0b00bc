"""In the PYTHONPATH of processes under test: their disk is half full, whatever the real one is.

Or as full as a test says, in percent: TEST_DISK_PERCENT is the number, or a file that holds it.
"""

import os
from pathlib import Path

_statvfs = os.statvfs


def _percent():
    given = os.environ.get("TEST_DISK_PERCENT", "50")
    return float(Path(given).read_text() if given.startswith("/") else given)


def _as_told(path):
    fields = list(_statvfs(path))
    blocks = fields[2]
    fields[3] = fields[4] = int(blocks * (1 - _percent() / 100))  # free, and free for ordinary users
    return os.statvfs_result(fields)


os.statvfs = _as_told
