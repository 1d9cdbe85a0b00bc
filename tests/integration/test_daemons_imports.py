"""Daemons whose code is imported when they start, while somebody else imports the same module."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path

import pytest

from ringrift.coordination.daemon_manager import DaemonManager
from ringrift.daemons.registry import DaemonSpec, Registry
from ringrift.daemons.types import DaemonManagerConfig, DaemonType

SLOW_MODULE = """
import asyncio
import threading

threading.Event().wait(0.2)

async def forever():
    await asyncio.Event().wait()
"""


@pytest.fixture
def slow_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "slow_daemons.py").write_text(SLOW_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "slow_daemons", raising=False)
    return "slow_daemons"


async def test_a_daemon_starts_although_its_module_is_half_imported_elsewhere(slow_module: str) -> None:
    entry_point = f"{slow_module}:forever"
    spec = DaemonSpec(daemon_type=DaemonType.EVENT_ROUTER, capability="event_bus", entry_point=entry_point)
    manager = DaemonManager(DaemonManagerConfig(loop_watchdog=False), registry=Registry([spec]))
    elsewhere = asyncio.create_task(asyncio.to_thread(importlib.import_module, slow_module))
    while slow_module not in sys.modules:
        await asyncio.sleep(0.001)
    try:
        assert (await manager.start_all()).reasons == {}
    finally:
        await manager.shutdown(timeout=2.0, force=True)
        await elsewhere
