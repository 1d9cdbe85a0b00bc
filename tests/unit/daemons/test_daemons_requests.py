"""What people ask of single daemons: carried out by the manager of the run, kept in the store."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from daemons_kit import Steady, in_simulation, make_manager, rows

from ringrift.daemons.planning import STOPPED_BY_PERSON
from ringrift.daemons.registry import DaemonSpec, product_registry
from ringrift.daemons.requests import (
    REQUESTS,
    DaemonRequest,
    DaemonRequests,
    DaemonVerb,
    RequestCarrier,
    require_daemon,
    what_it_means,
)
from ringrift.daemons.types import DaemonType
from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.errors import ConfigError
from ringrift.testing.simulation import SimulatedRuntime

BASE, NEEDS_IT = DaemonType.SELFPLAY_COORDINATOR, DaemonType.QUEUE_POPULATOR
OTHER = DaemonType.AUTO_EXPORT
ORIGINAL, ALIAS, COUNTS_ON_IT = (
    DaemonType.AUTO_PROMOTION,
    DaemonType.UNIFIED_PROMOTION,
    DaemonType.MODEL_DISTRIBUTION,
)
SECOND = DaemonType.VAST_CPU_PIPELINE  # another alias of it, here
NEEDS = {NEEDS_IT: [BASE], COUNTS_ON_IT: [ORIGINAL]}


class NeverReady(Steady):
    async def run(self, *, on_ready):
        raise RuntimeError("no such disk")


class Run:
    """One run after the other on the same store."""

    def __init__(self):
        self.runtime, self.store = SimulatedRuntime(), MemoryStore()
        self.kv = memory_engine(self.runtime, self.store).kv
        self.requests = DaemonRequests(self.kv)
        self.daemons = {}

    @asynccontextmanager
    async def alive(self, started=(BASE, NEEDS_IT), **factories):
        manager = make_manager(runtime=self.runtime, registry=rows(*self._specs()))
        for daemon in (BASE, NEEDS_IT, OTHER, ORIGINAL, ALIAS, SECOND, COUNTS_ON_IT):
            self.daemons[daemon] = factories.get(daemon.value, Steady())
            manager.register_factory(daemon, self.daemons[daemon], depends_on=NEEDS.get(daemon, []))
        carrier = RequestCarrier(self.kv, manager, self.runtime)
        await carrier.before_start()
        await manager.start_all(started)
        carrying = asyncio.create_task(carrier.run())
        try:
            yield manager
        finally:
            carrying.cancel()
            await asyncio.wait({carrying})
            await manager.shutdown()

    def _specs(self):
        others = [
            DaemonSpec(daemon_type=daemon) for daemon in (BASE, NEEDS_IT, OTHER, ORIGINAL, COUNTS_ON_IT)
        ]
        aliases = [DaemonSpec(daemon_type=alias, deprecated_for=ORIGINAL) for alias in (ALIAS, SECOND)]
        return [*others, *aliases]

    async def ask(self, daemon, want, reason=""):
        """Ask, and return the answer of the run."""
        at_s = self.runtime.now_s()
        await self.requests.ask(
            DaemonRequest(daemon=daemon.value, want=want, reason=reason, by="anna", at_s=at_s)
        )
        for _ in range(600):
            await self.runtime.sleep(0.1)
            if (found := await self.requests.get(daemon.value)).done_s is not None:
                return found
        raise AssertionError("the run did not answer")


def test_a_stop_acts_on_the_live_run_and_lasts_over_restarts_until_a_start():
    async def main():
        run = Run()
        async with run.alive() as manager:
            done = await run.ask(BASE, DaemonVerb.STOP, "the board is needed")
            assert (done.problem, done.reason, done.by) == ("", "the board is needed", "anna")
            assert run.daemons[BASE].alive == 0
            assert STOPPED_BY_PERSON in manager.why(BASE)
            assert run.daemons[NEEDS_IT].alive == 1
            assert bool(manager.readiness_probe()), "what nobody wants is not missing"
        async with run.alive() as manager:
            await run.runtime.sleep(60)
            assert run.daemons[BASE].lives == 0
            assert run.daemons[NEEDS_IT].alive == 1, "as in the run before"
            assert STOPPED_BY_PERSON in manager.why(BASE)
            assert (await run.ask(BASE, DaemonVerb.START)).problem == ""
            assert manager.is_running(BASE)
        async with run.alive() as manager:
            assert manager.is_running(BASE)

    in_simulation(main)


def test_a_stop_of_a_run_that_is_down_holds_from_its_next_start():
    async def main():
        run = Run()
        await run.requests.ask(DaemonRequest(daemon=BASE.value, want=DaemonVerb.STOP, by="anna", at_s=1.0))
        async with run.alive():
            assert run.daemons[BASE].lives == 0
            assert (await run.requests.get(BASE.value)).done_s is not None

    in_simulation(main)


def test_a_daemon_that_the_run_would_not_start_is_started_in_this_and_the_next_run():
    async def main():
        run = Run()
        async with run.alive() as manager:
            assert run.daemons[OTHER].lives == 0
            await run.ask(OTHER, DaemonVerb.START)
            assert manager.is_running(OTHER)
        async with run.alive() as manager:
            await run.runtime.sleep(1)
            assert manager.is_running(OTHER)

    in_simulation(main)


def test_a_restart_gives_the_daemon_a_second_life_once():
    async def main():
        run = Run()
        async with run.alive() as manager:
            assert (await run.ask(BASE, DaemonVerb.RESTART)).problem == ""
            await run.runtime.sleep(60)
            assert manager.is_running(BASE)
            assert run.daemons[BASE].lives == 2
            assert run.daemons[BASE].most_alive == 1
        async with run.alive():
            await run.runtime.sleep(60)
            assert run.daemons[BASE].lives == 1

    in_simulation(main)


def test_a_start_that_fails_is_answered_with_the_error():
    async def main():
        run = Run()
        async with run.alive(auto_export=NeverReady()):
            done = await run.ask(OTHER, DaemonVerb.START)
            assert "no such disk" in done.problem

    in_simulation(main)


def test_an_alias_is_no_way_round_the_stop_of_its_original_and_says_why():
    async def main():
        run = Run()
        async with run.alive([ORIGINAL]) as manager:
            await run.ask(ORIGINAL, DaemonVerb.STOP, "z")
            refused = (await run.ask(ALIAS, DaemonVerb.START)).problem
            assert "auto_promotion does the same and is not up (stopped by a person: anna, z)" in refused
            assert "start auto_promotion instead" in refused
            assert run.daemons[ALIAS].lives == 0
            await run.ask(ORIGINAL, DaemonVerb.START)
            assert manager.is_running(ORIGINAL)
            refused = (await run.ask(ALIAS, DaemonVerb.START)).problem
            assert refused == "deprecated: auto_promotion does the same and is running"

    in_simulation(main)


def test_a_stop_of_a_name_under_which_nothing_runs_stops_nothing_and_says_what_to_stop():
    async def main():
        run = Run()
        async with run.alive([ORIGINAL]) as manager:
            refused = await run.ask(ALIAS, DaemonVerb.STOP, "not wanted")
            assert refused.problem == (
                "it does not run; auto_promotion does the same, so "
                "`ringrift daemons stop auto_promotion` stops that"
            )
            assert manager.is_running(ORIGINAL)
            assert await run.requests.stops() == {}, "and the doctor finds nothing"
        # What an earlier version carried out, though it stopped nothing, is taken back by the next run.
        await run.kv.delete(REQUESTS + ALIAS.value)
        stood = DaemonRequest(daemon=ALIAS.value, want=DaemonVerb.STOP, by="anna", at_s=1.0, done_s=2.0)
        await run.requests.ask(stood)
        async with run.alive([ORIGINAL]):
            await run.runtime.sleep(1)
            assert await run.requests.stops() == {}
        await run.kv.delete(REQUESTS + ALIAS.value)
        # Where somebody has started the alias, the stop of the original would stop nothing.
        async with run.alive([BASE]) as manager:
            await run.ask(ALIAS, DaemonVerb.START)
            assert (
                "`ringrift daemons stop unified_promotion`"
                in (await run.ask(ORIGINAL, DaemonVerb.STOP)).problem
            )
            assert manager.is_running(ALIAS)
            assert (await run.ask(ALIAS, DaemonVerb.STOP)).problem == ""
            assert (await run.requests.stops()).keys() == {ALIAS.value}
            assert run.daemons[ALIAS].alive == 0
            await run.ask(ORIGINAL, DaemonVerb.START)
            assert "is running" in (await run.ask(ALIAS, DaemonVerb.START)).problem
            await run.runtime.sleep(60)
            assert (run.daemons[ORIGINAL].alive, run.daemons[ALIAS].alive) == (1, 0)

    in_simulation(main)


def test_of_two_names_one_runs_in_whichever_order_they_are_started_and_others_count_on_either():
    async def main():
        run = Run()
        async with run.alive([BASE]) as manager:
            assert await manager.start(ALIAS)
            assert not await manager.start(ORIGINAL)
            assert "unified_promotion does the same and is running; stop unified_promotion first" in str(
                manager.get_status()[ORIGINAL].last_error
            )
            results = await manager.start_all([ORIGINAL, COUNTS_ON_IT])
            assert results == {ORIGINAL: False, COUNTS_ON_IT: True}
            await manager.stop(ALIAS)
            assert run.daemons[ALIAS].alive == run.daemons[ORIGINAL].lives == 0
            assert await manager.start(ORIGINAL)

    in_simulation(main)


def test_a_stop_of_what_is_stopped_keeps_who_stopped_it_why_and_since_when():
    async def main():
        run = Run()
        async with run.alive() as manager:
            first = await run.ask(BASE, DaemonVerb.STOP, "the board is needed")
            await run.runtime.sleep(60)
            bare = DaemonRequest(daemon=BASE.value, want=DaemonVerb.STOP, by="bert", at_s=run.runtime.now_s())
            assert await run.requests.answer(bare, run.runtime) == first
            assert "anna, the board is needed" in manager.why_resting(BASE, STOPPED_BY_PERSON)
            again = msgspec.structs.replace(bare, reason="the disk is full")
            done = await run.requests.answer(again, run.runtime)
            assert (done.at_s, done.by, done.reason) == (first.at_s, "bert", "the disk is full")
            assert "bert, the disk is full" in manager.why_resting(BASE, STOPPED_BY_PERSON)

    in_simulation(main)


def test_what_is_no_request_keeps_nobody_from_being_heard():
    async def main():
        run = Run()
        await run.kv.put(f"{REQUESTS}auto_sync", b"{")
        async with run.alive():
            await run.kv.put(f"{REQUESTS}elo_sync", b"[]")
            await run.requests.ask(DaemonRequest(daemon="gone", want=DaemonVerb.STOP))
            await run.ask(BASE, DaemonVerb.STOP)
            assert run.daemons[BASE].alive == 0
            assert "no daemon gone" in (await run.requests.get("gone")).problem

    in_simulation(main)


def test_a_wrong_name_is_answered_with_the_nearest():
    assert require_daemon("SELFPLAY-Coordinator") == "selfplay_coordinator"
    with pytest.raises(ConfigError, match="did you mean selfplay_coordinator"):
        require_daemon("selfplay_cordinator")
    with pytest.raises(ConfigError, match="`ringrift daemons` lists them"):
        require_daemon("qqqqqqqq")


@pytest.mark.parametrize("spec", product_registry(), ids=lambda spec: spec.daemon_type.value)
def test_every_daemon_says_what_it_means_to_do_without_it(spec):
    assert what_it_means(spec.daemon_type.value)


def test_the_loops_own_daemon_says_that_nothing_is_decided():
    assert "nothing is decided" in what_it_means("data_pipeline")


def test_who_counts_on_a_daemon_is_named_unless_it_is_an_alias_or_down_itself():
    assert "auto_promotion, model_distribution count on it" in what_it_means("evaluation")
    told = what_it_means("evaluation", {"auto_promotion"})
    assert "auto_promotion" not in told
    assert "model_distribution counts on it and goes on without it" in told


def test_an_alias_that_a_person_stopped_does_not_come_back_beside_another_one():
    async def main():
        run = Run()
        async with run.alive([BASE]):
            asked = ((ALIAS, DaemonVerb.START), (ALIAS, DaemonVerb.STOP), (SECOND, DaemonVerb.START))
            for daemon, want in asked:
                assert (await run.ask(daemon, want)).problem == ""
            assert f"stop {SECOND} first" in (await run.ask(ALIAS, DaemonVerb.START)).problem
            await run.runtime.sleep(60)
            assert (run.daemons[ALIAS].alive, run.daemons[SECOND].alive) == (0, 1)

    in_simulation(main)
