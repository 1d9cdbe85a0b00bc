"""Where log lines of a program go that uses the package and says nothing about logs."""

import os
import subprocess
import sys

USE = """
import asyncio
from app.coordination.daemon_manager import DaemonManager
from app.coordination.daemon_types import DaemonType

async def broken():
    raise RuntimeError("broken")

async def main():
    manager = DaemonManager()
    manager.register_factory(DaemonType.ELO_SYNC, broken)
    await manager.start(DaemonType.ELO_SYNC)
    async with asyncio.timeout(30):
        while not manager.get_status()[DaemonType.ELO_SYNC].last_error:
            await asyncio.sleep(0.01)
    await manager.shutdown()

asyncio.run(main())
print("my own line")
"""
CONFIGURED = "import structlog; structlog.configure(processors=[structlog.processors.JSONRenderer()])\n"


def run(code, tmp_path):
    environment = {**os.environ, "RINGRIFT_DATA_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout, done.stderr


def test_stdout_belongs_to_the_program(tmp_path):
    out, err = run(USE, tmp_path)
    assert out == "my own line\n"
    assert "daemons.crashed" in err
    assert "daemons.state" not in err  # details are for those who ask


def test_a_program_that_configures_logs_is_left_alone(tmp_path):
    out, err = run(CONFIGURED + USE, tmp_path)
    assert '"event": "daemons.crashed"' in out
    assert '"event": "daemons.state"' in out
    assert err == ""
