"""The worker processes of a run are kept alive, in simulated time."""

import asyncio
import signal
from contextlib import asynccontextmanager

from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.worker.local import HEALTHY_AFTER_S, LOG_BYTES_MAX, RESTART_S_MAX, LocalWorker


class PoorRuntime(SimulatedRuntime):
    """A machine that sometimes has no room for another process."""

    def __init__(self):
        super().__init__()
        self.refusals = 0

    async def spawn(self, command):
        if self.refusals:
            self.refusals -= 1
            raise BlockingIOError("no more processes")
        return await super().spawn(command)


@asynccontextmanager
async def kept_alive(runtime, folder):
    worker = LocalWorker(runtime, name="w1", slots=1, log_path=folder / "worker.log", grace_s=10)
    running = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        running.cancel()
        await asyncio.sleep(0)
        for _command, child in runtime.children:
            child.exit(0)
        await asyncio.wait({running}, timeout=100)
        assert running.cancelled()


async def started(runtime, count, *, within_s):
    async with asyncio.timeout(within_s):
        while len(runtime.children) < count:
            await runtime.sleep(0.1)
    return runtime.children[count - 1][1]


def test_a_worker_that_dies_is_started_again_and_less_often_if_it_keeps_dying(tmp_path):
    async def scenario():
        runtime = SimulatedRuntime()
        async with kept_alive(runtime, tmp_path) as worker:
            (await started(runtime, 1, within_s=5)).exit(-signal.SIGKILL)
            for count in range(2, 10):
                (await started(runtime, count, within_s=RESTART_S_MAX + 1)).exit(1)
            begun_s = runtime.monotonic_s()
            last = await started(runtime, 10, within_s=RESTART_S_MAX + 1)
            assert runtime.monotonic_s() - begun_s >= RESTART_S_MAX - 1
            await runtime.sleep(HEALTHY_AFTER_S + 1)
            last.exit(1)
            await started(runtime, 11, within_s=2)
            assert worker.restarts == 10

    simulate(scenario())


def test_a_machine_without_room_for_a_process_is_asked_again(tmp_path):
    async def scenario():
        runtime = PoorRuntime()
        runtime.refusals = 3
        async with kept_alive(runtime, tmp_path):
            await started(runtime, 1, within_s=60)

    simulate(scenario())


def test_the_log_of_a_worker_that_runs_for_days_stays_small(tmp_path):
    async def scenario():
        runtime, log = SimulatedRuntime(), tmp_path / "worker.log"
        async with kept_alive(runtime, tmp_path):
            await started(runtime, 1, within_s=5)
            for _hour in range(3):
                with log.open("ab") as file:
                    file.write(b"line\n" * (LOG_BYTES_MAX // 4))
                await runtime.sleep(3600)
            assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2 * LOG_BYTES_MAX

    simulate(scenario())
