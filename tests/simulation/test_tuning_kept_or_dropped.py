"""A finding changes the orders of a simulated run; whether it stays, its candidates show."""

import asyncio

import msgspec
import pytest
from learning_world import World

from ringrift.learning.facts.facts import JobIssued, Noted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.replay import replay
from ringrift.learning.tuning import OptimizationRun, OptimizationType, report_of_finding, trials
from ringrift.testing.simulation import simulate

CONFIG, C_SCALE, FOUND = "hex8_2p", 0.1, 0.4
HOURS = 0.8
RUN = OptimizationRun(
    run_id="tune.cmaes.1", optimization_type=OptimizationType.CMAES, config_key=CONFIG, reason="",
    started_s=0.0, params={"subject": "search"}, best_params={"c_scale": FOUND}, best_score=0.57,
)  # fmt: skip


class SearchedWorld(World):
    """Games that are searched in the new way teach as others do, or nonsense."""

    helps = True

    def _selfplay(self, order):
        artifacts, told = super()._selfplay(order)
        if order.params["c_scale"] == FOUND and not self.helps:
            self.truth.poisoned.add(artifacts[0].digest)
        return artifacts, told

    async def find(self):
        """Once there is a champion, note what a search of its settings found."""
        await self.runtime.sleep(600.0)
        while self.controller.state(CONFIG).champion is None:
            await self.runtime.sleep(10.0)
        state = self.controller.state(CONFIG)
        text, details = report_of_finding(state, RUN, "small")
        await self.controller.write(
            CONFIG, Noted(at_s=state.last_s, topic="tuned", text=text, details=details)
        )


@pytest.mark.parametrize("helps", [True, False])
def test_what_a_search_found_changes_the_games_and_is_kept_or_dropped_by_what_is_learned_from_them(helps):
    world, facts = SearchedWorld(3, configs=(CONFIG,), faults=False), []
    world.helps = helps

    async def main():
        async with asyncio.TaskGroup() as group:
            group.create_task(world.find())
            await world.run(hours=HOURS)
        facts.extend(await read_facts(world.engine().kv, CONFIG))

    simulate(main())
    notes = [fact for fact in facts if isinstance(fact, Noted) and fact.topic == "tuned"]
    ways = [
        fact.order.params["c_scale"]
        for fact in facts
        if isinstance(fact, JobIssued) and fact.kind == "selfplay"
    ]
    (trial,) = trials(world.controller.state(CONFIG))
    assert (ways[0], FOUND in ways) == (C_SCALE, True)
    if helps:
        assert (len(notes), ways[-1]) == (1, FOUND)
        assert trial.kept_by is not None
    else:
        assert (len(notes), ways[-1]) == (2, C_SCALE)
        assert "shown to be worse" in notes[1].text
        assert not trial.is_in_force
    assert replay(CONFIG, facts, world.rules) == []
    if not helps:
        number = facts.index(notes[1])
        facts[number] = msgspec.structs.replace(notes[1], details={**notes[1].details, "reason": "a whim"})
        assert [each.number for each in replay(CONFIG, facts, world.rules)] == [number + 1]
