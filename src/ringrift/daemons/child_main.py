"""The child's side of process isolation: `python -m ringrift.daemons.child_main FD module:factory [json]`.

Says "ready" and then beats on the pipe FD; ends with everything it started when the parent is gone. Imports
little, because a restart waits for it.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

BEAT_S = 1.0
READY, BEAT = b"R", b"b"
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Run the daemon to its end. Exit code 0 means that it completed."""
    beat_fd, entry_point = int(arguments[0]), arguments[1]
    settings: dict[str, str] = json.loads(arguments[2]) if len(arguments) > 2 else {}
    parent = os.getppid()
    die_with_parent(parent)
    threading.Thread(target=_beat, args=(beat_fd, parent), name="heartbeat", daemon=True).start()
    module, _, attribute = entry_point.partition(":")
    factory = getattr(importlib.import_module(module), attribute)
    try:
        asyncio.run(_run(factory, settings, lambda: _write(beat_fd, READY)))
    except asyncio.CancelledError:
        return 0
    return 0


def die_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent dies, however that happens (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the kernel was asked
        os._exit(1)


def _beat(beat_fd: int, parent: int) -> None:
    pause = threading.Event()
    while not pause.wait(BEAT_S):
        if os.getppid() != parent or not _write(beat_fd, BEAT):
            # Nobody is left to supervise this session: end it whole.
            os.killpg(0, signal.SIGKILL)


def _write(beat_fd: int, sign: bytes) -> bool:
    try:
        os.write(beat_fd, sign)
    except BlockingIOError:  # the parent is busy; it will read the beats that wait already
        return True
    except OSError:
        return False
    return True


async def _run(factory: Callable[..., Any], settings: dict[str, str], ready: Callable[[], Any]) -> None:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    takes_settings = "settings" in inspect.signature(factory).parameters
    made = factory(settings=settings) if takes_settings else factory()
    if inspect.iscoroutine(made):
        ready()
        made = await made
    if made is None:
        return
    run = made.run
    if "on_ready" in inspect.signature(run).parameters:
        await run(on_ready=ready)
        return
    ready()
    result: Awaitable[None] | None = run()
    if result is not None:
        await result


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
