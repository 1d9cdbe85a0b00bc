"""Roles between real processes: mutual exclusion, `kill -9` of the holder, and those that come with a run."""

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest
from loop_under_test import Loop, until

from ringrift.cli.command import EXIT_WRONG_INPUT

WAIT_S = 90
CONTENDER = """
import sys, time
from ringrift.engine.leases import LeaseConfig
from ringrift.engine.opening import get_engine
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.coordination.orchestrator_registry import (
    OrchestratorRole, OrchestratorRoles, acquire_orchestrator_role, orchestrator_role_token
)

async def get_kv():
    return (await get_engine()).kv

config = LeaseConfig(lease_s=float(sys.argv[1]), renew_s=1.2)
roles = OrchestratorRoles(get_kv, runtime=system_runtime(), config=config)
process_scope().put(OrchestratorRoles, roles)
role = OrchestratorRole.TRAINING_LOOP
for line in sys.stdin:
    wait = float(line)
    got = acquire_orchestrator_role(role, wait_seconds=wait)
    print("answer", "held" if got else "refused", orchestrator_role_token(role) if got else 0, flush=True)
"""


class Contender:
    def __init__(self, folder, lease_s):
        env = {**os.environ, "RINGRIFT_DATA_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTENDER, str(lease_s)],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, wait_s):
        self.process.stdin.write(f"{wait_s}\n")
        self.process.stdin.flush()
        for line in self.process.stdout:  # log lines come between
            if line.startswith("answer "):
                _, answer, token = line.split()
                return answer, int(token)
        raise AssertionError("the contender ended")

    def close(self):
        self.process.kill()
        self.process.wait(timeout=10)
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def contend(tmp_path):
    started = []

    def contend(lease_s):
        started[:] = [Contender(tmp_path, lease_s), Contender(tmp_path, lease_s)]
        return started

    yield contend
    for contender in started:
        contender.close()


def test_a_role_is_held_beyond_its_lease_by_heartbeats_alone(contend):
    lease_s = 9.0
    first, second = contend(lease_s)
    assert first.ask(0)[0] == "held"
    assert second.ask(1.5 * lease_s)[0] == "refused"


def test_kill_of_the_holder_frees_the_role_at_once_for_a_process_that_sees_it_dead(contend):
    first, second = contend(10 * WAIT_S)
    answer, first_token = first.ask(0)
    assert answer == "held"
    assert second.ask(0)[0] == "refused"

    first.process.send_signal(signal.SIGKILL)
    first.process.wait(timeout=10)
    # Without seeing the death it would have to wait for the lease, which is much longer than this.
    answer, second_token = second.ask(WAIT_S)
    assert answer == "held"
    assert second_token > first_token


# --- beside a run -------------------------------------------------------------------------------------------

ASKER = """
import json, sys
from app.coordination.orchestrator_registry import (
    OrchestratorRole, acquire_orchestrator_role, get_role_audit, get_role_holder
)

for line in sys.stdin:
    want, _, name = line.strip().partition(" ")
    if want == "take":
        told = acquire_orchestrator_role(OrchestratorRole[name])
    elif want == "audit":
        told = [[row.action.value, row.role, row.other] for row in get_role_audit()]
    else:
        told = {role.name: getattr(get_role_holder(role), "holder", None) for role in OrchestratorRole}
    print("answer", json.dumps(told), flush=True)
"""


class Asker:
    """A program of somebody else on the data folder."""

    def __init__(self, loop):
        self.process = subprocess.Popen(
            [sys.executable, "-c", ASKER],
            env=loop.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line):
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        for told in self.process.stdout:
            if told.startswith("answer "):
                return json.loads(told.removeprefix("answer "))
        raise AssertionError("it ended")

    def close(self):
        self.process.kill()
        self.process.wait(timeout=10)
        self.process.stdin.close()
        self.process.stdout.close()


async def test_a_run_has_the_roles_that_come_with_control_and_nobody_runs_beside_who_has_one(tmp_path):
    loop = Loop(tmp_path, tiny=True, workers=0)
    asker = Asker(loop)
    try:
        assert set(asker.ask("who").values()) == {None}, "nobody runs"
        loop.start()

        async def runs():
            return asker.ask("who")["TRAINING_LOOP"] is not None

        await until(runs, "control", loop)
        holders = asker.ask("who")
        assert holders.pop("CLUSTER") is None
        (holder,) = set(holders.values())
        assert holder.startswith(f"process {loop.process.pid} on ")
        for role in holders:
            assert asker.ask(f"take {role}") is False
        denied = [row for row in asker.ask("audit") if row[0] == "ACQUIRE_DENIED"]
        assert ["ACQUIRE_DENIED", "training_loop", holder] in denied
        assert asker.ask("take CLUSTER") is True
        assert await loop.end() == 0
        assert asker.ask("who")["TRAINING_LOOP"] is None
        assert asker.ask("take TRAINING_LOOP") is True
        loop.start()
        assert await asyncio.to_thread(loop.process.wait, WAIT_S) == EXIT_WRONG_INPUT
        words = loop.log.read_text()
        assert f":{asker.process.pid}:" in words
        assert "holds the role training_loop" in " ".join(words.split())
    finally:
        asker.close()
        loop.kill_everything()
