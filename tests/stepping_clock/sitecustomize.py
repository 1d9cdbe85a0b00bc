"""In the PYTHONPATH of processes under test: each sees a wall clock that is set by a day at random moments.

Every process has a clock of its own, which is right, a day ahead or a day behind for some seconds at a time,
as drawn from TEST_CLOCK_SEED. Each setting that somebody read is noted in the file TEST_CLOCK_LOG. The disk
is as roomy as in every test.
"""

import os
import random
import runpy
import time
from pathlib import Path

DAY_S = 86_400.0
PERIOD_S = 1.5

_time, _monotonic = time.time, time.monotonic
_seen = [None]


def _offset_s():
    period = int(_monotonic() / PERIOD_S)
    offset_s = random.Random(f"{os.environ['TEST_CLOCK_SEED']} {os.getpid()} {period}").choice(
        (-DAY_S, 0.0, DAY_S)
    )
    if _seen[0] != offset_s:
        _seen[0] = offset_s
        descriptor = os.open(os.environ["TEST_CLOCK_LOG"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(descriptor, f"{os.getpid()} {offset_s:g}\n".encode())
        os.close(descriptor)
    return offset_s


def _stepped():
    return _time() + _offset_s()


if "TEST_CLOCK_SEED" in os.environ:  # jobs are given little of the environment, and coordinate nothing
    time.time = _stepped
    time.time_ns = lambda: int(_stepped() * 1e9)
runpy.run_path(str(Path(__file__).parents[1] / "roomy_disk" / "sitecustomize.py"))
