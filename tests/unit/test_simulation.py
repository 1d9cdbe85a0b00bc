import asyncio

import pytest

from ringrift.engine.blocking import run_blocking
from ringrift.errors import ConfigError
from ringrift.runtime import Command
from ringrift.testing.simulation import SimulatedLoop, SimulatedRuntime, Stuck, simulate


def test_ten_hours_of_sleep_pass_at_once():
    async def main():
        runtime = SimulatedRuntime()
        start_s = runtime.now_s()
        await runtime.sleep(36_000)
        return runtime.now_s() - start_s

    assert simulate(main()) == pytest.approx(36_000)


def test_a_blocking_call_sees_the_simulated_time_and_not_how_long_the_machine_is_up():
    runtime = SimulatedRuntime()

    async def its_time():
        return runtime.monotonic_s()

    async def main():
        for hours in (1, 2):
            await runtime.sleep(3600)
            assert run_blocking(its_time()) == pytest.approx(hours * 3600)

    simulate(main())
    simulate(main())


def test_timeouts_fire_in_simulated_time():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert simulate(main()) == pytest.approx(3600)


def test_tasks_interleave_in_order_of_time():
    async def main():
        runtime, seen = SimulatedRuntime(), []

        async def tick(name, period_s):
            for _ in range(3):
                await runtime.sleep(period_s)
                seen.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(tick("slow", 20))
            group.create_task(tick("fast", 7))
        return seen

    assert simulate(main()) == ["fast", "fast", "slow", "fast", "slow", "slow"]


def test_a_lost_wake_up_is_found_and_not_waited_for():
    async def main():
        await asyncio.Event().wait()

    with pytest.raises(Stuck), asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        runner.run(main())


def test_same_seed_same_ids_and_wall_clock_may_jump():
    async def main(seed):
        runtime = SimulatedRuntime(seed=seed)
        before_s, mono_s = runtime.now_s(), runtime.monotonic_s()
        runtime.wall_offset_s -= 3600
        assert runtime.now_s() < before_s
        assert runtime.monotonic_s() == mono_s
        return [runtime.new_id() for _ in range(3)]

    assert simulate(main(1)) == simulate(main(1)) != simulate(main(2))


def test_children_are_told_about_and_can_be_killed():
    async def main():
        runtime = SimulatedRuntime()
        child = await runtime.spawn(Command(argv=["train"]))
        runtime.children[0][1].exit(3)
        return await child.wait()

    assert simulate(main()) == 3


def test_a_limit_that_cannot_be_meant_is_refused():
    async def main():
        return None

    coro = main()
    with pytest.raises(ConfigError, match="limit_s"):
        simulate(coro, limit_s=0)
    coro.close()
