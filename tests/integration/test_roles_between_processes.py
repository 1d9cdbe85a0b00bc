"""Two real processes and one role: mutual exclusion, and `kill -9` of the holder frees the role."""

import os
import signal
import subprocess
import sys
import time

import pytest

LEASE_S, RENEW_S = 2.4, 0.3
CONTENDER = f"""
import sys, time
from ringrift.engine.leases import LeaseConfig
from ringrift.engine.opening import get_engine
from ringrift.process import process_scope
from ringrift.runtime import system_runtime
from ringrift.work.roles import (
    OrchestratorRole, OrchestratorRoles, acquire_orchestrator_role, orchestrator_role_token
)

async def get_kv():
    return (await get_engine()).kv

config = LeaseConfig(lease_s={LEASE_S}, renew_s={RENEW_S})
roles = OrchestratorRoles(get_kv, runtime=system_runtime(), config=config)
process_scope().put(OrchestratorRoles, roles)
role = OrchestratorRole.TRAINING_LOOP
for line in sys.stdin:
    wait = float(line)
    got = acquire_orchestrator_role(role, wait_seconds=wait)
    print("answer", "held" if got else "refused", orchestrator_role_token(role) if got else 0, flush=True)
"""


class Contender:
    def __init__(self, folder):
        env = {**os.environ, "RINGRIFT_DATA_DIR": str(folder)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTENDER],
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
def contenders(tmp_path):
    pair = [Contender(tmp_path), Contender(tmp_path)]
    yield pair
    for contender in pair:
        contender.close()


def test_kill_of_the_holder_frees_the_role_at_once_for_a_process_that_sees_it_dead(contenders):
    first, second = contenders
    answer, first_token = first.ask(0)
    assert answer == "held"
    # Held beyond its lease by heartbeats alone.
    assert second.ask(1.5 * LEASE_S)[0] == "refused"

    first.process.send_signal(signal.SIGKILL)
    first.process.wait(timeout=10)
    killed = time.monotonic()
    answer, second_token = second.ask(10)
    took_s = time.monotonic() - killed
    assert answer == "held"
    assert second_token > first_token
    # Without seeing the death it would have to wait for the lease, of which two thirds at least are left.
    assert took_s < LEASE_S / 3 + 5.0
