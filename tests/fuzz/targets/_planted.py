"""Faults planted to prove that the harness finds each kind; test_fuzz.py runs it, no session does."""

import ctypes
import os
import threading
import time

SEEDS = [b"plain", b"HA", b"DI", b"ME", b"SL"]
WANTED = os.environ.get("PLANTED", "")
HANG_S = 2.0 if WANTED == "HANG" else 200.0
SLOW_S = 0.5


def run(data: bytes) -> None:
    """Fail in the way that PLANTED names, once the loop has worked its way to three right bytes."""
    if data[:1] != WANTED[:1].encode():
        return
    if data[1:2] != WANTED[1:2].encode():
        return
    if data[2:3] < b"\x80":
        return
    if WANTED == "ERROR":
        raise ValueError(data)
    if WANTED == "HANG":
        threading.Event().wait()
    if WANTED == "DIED":
        ctypes.string_at(0)
    if WANTED == "MEMORY":
        bytearray(1 << 34)
    if WANTED == "SLOW":
        until_s = time.process_time() + 2 * SLOW_S
        while time.process_time() < until_s:
            pass
