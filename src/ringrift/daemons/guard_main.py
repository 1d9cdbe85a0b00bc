"""The guard's side: outlives a killed supervisor just long enough to end what it left behind.

Run as a plain file by `OrphanGuard`. Reads "+group" and "-group" lines from stdin; when stdin ends, the
supervisor is gone, and every group still on the list is killed.
"""

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        group = int(line[1:])
        if line.startswith(b"+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        try:
            os.killpg(group, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
    return 0


if __name__ == "__main__":
    sys.exit(main())
