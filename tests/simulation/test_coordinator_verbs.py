"""What somebody asks of a coordinator is done in a running loop, and without the asking it is not."""

import pytest
from test_stage_daemons import CONFIG, RunWithDaemons

from ringrift.coordination.evaluation_daemon import EvaluationDaemon, get_evaluation_daemon
from ringrift.coordination.optimization_coordinator import get_optimization_coordinator
from ringrift.coordination.task_coordinator import CoordinatorState, get_task_coordinator
from ringrift.engine.ports import WorkState
from ringrift.learning.situation import Situations
from ringrift.learning.tuning import OptimizationType
from ringrift.process import process_scope
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import simulate


class RunWithCoordinators(RunWithDaemons):
    """The loop, the daemons, and the coordinators of the process on the same store and clock."""

    def __init__(self):
        super().__init__()
        process_scope().put(SystemRuntime, self.runtime)
        self.searches = []

    async def _carry_out(self, engine, name, claim):
        if claim.kind != "tune":
            await super()._carry_out(engine, name, claim)
            return
        self.searches.append(claim.id)  # what a search does is not shown here
        await engine.queue.fail(claim.id, token=claim.token, error="not tried", final=True)

    def jobs_done(self):
        return self.truth.ends.total()


def lived(body):
    world = RunWithCoordinators()
    simulate(world.live(body))


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (CoordinatorState.PAUSED, "paused: the board is needed"),
        (CoordinatorState.DRAINING, "paused: the board is needed"),
        (CoordinatorState.EMERGENCY, "paused: emergency stop: the board is needed"),
    ],
)
def test_work_rests_while_the_task_coordinator_pauses_drains_or_stops_in_an_emergency(state, why):
    async def body(world):
        await world.periods(0.5)
        assert world.jobs_done()
        await get_task_coordinator().set_state(state, "the board is needed")
        await world.runtime.sleep(120.0)  # what has begun comes to its end
        done = world.jobs_done()
        await world.periods(0.5)
        assert world.jobs_done() == done
        assert world.said("selfplay") == why
        await get_task_coordinator().set_state(CoordinatorState.RUNNING)
        await world.periods(0.5)
        assert world.jobs_done() > done

    lived(body)


@pytest.mark.parametrize("kind", [OptimizationType.CMAES, OptimizationType.NAS, OptimizationType.PBT])
def test_a_search_is_ordered_when_it_is_triggered_and_not_before(kind):
    async def body(world):
        await world.periods(1.0)
        assert world.searches == []
        run = await get_optimization_coordinator().begin(kind, CONFIG, "asked for")
        await world.periods(0.1)
        assert world.searches == [run.run_id]

    lived(body)


def test_a_search_that_is_cancelled_is_not_begun():
    async def body(world):
        await world.periods(1.0)
        await get_task_coordinator().set_state(CoordinatorState.PAUSED)
        coordinator = get_optimization_coordinator()
        run = await coordinator.begin(OptimizationType.CMAES, CONFIG, "asked for")
        assert await coordinator.cancel(run.run_id, reason="not wanted any more")
        await get_task_coordinator().set_state(CoordinatorState.RUNNING)
        await world.periods(0.1)
        assert world.searches == []
        assert (await world.engine().queue.get(run.run_id)).state is WorkState.CANCELLED

    lived(body)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_games_that_are_requested_of_a_model_are_played_and_no_others(elsewhere):
    opponent = "mcts:8"  # nobody plays against this one by himself

    async def against(world):
        orders = await world.orders("evaluate", since_s=0.0)
        return [each for each in orders if opponent in str(each.order.params)]

    async def body(world):
        await world.periods(1.0)
        assert await against(world) == []
        # A daemon without the loop is what another process has.
        daemon = EvaluationDaemon(situations=Situations()) if elsewhere else get_evaluation_daemon()
        asked = [await daemon.request_evaluation(CONFIG, opponents=(opponent,), games=20) for _ in range(2)]
        assert asked[0] == asked[1]
        assert [(each.opponent, each.games) for each in asked[0]] == [(opponent, 20)]
        for _ in range(8):  # candidates, the champion's second look and the share of judging come first
            await world.periods(0.5)
            if await against(world):
                return
        raise AssertionError("nobody plays them")

    lived(body)
