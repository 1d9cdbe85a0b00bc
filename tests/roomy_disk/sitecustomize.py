"""In the PYTHONPATH of processes under test: their disk is half full, whatever the real one is."""

import os

_statvfs = os.statvfs


def _half_full(path):
    fields = list(_statvfs(path))
    blocks = fields[2]
    fields[3] = fields[4] = blocks // 2  # free, and free for ordinary users
    return os.statvfs_result(fields)


os.statvfs = _half_full
