"""Two real processes and one role: mutual exclusion, and `kill -9` of the holder frees the role."""

import os
import signal
import subprocess
import sys

import pytest

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
