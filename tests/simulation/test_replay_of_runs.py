"""The decisions of a simulated run, with crashes and failures, follow from the facts before them."""

import msgspec
import pytest
from learning_world import World

from ringrift.learning.facts.facts import JobIssued, Noted, Promoted
from ringrift.learning.facts.ledger import read_facts
from ringrift.learning.replay import moment, replay
from ringrift.testing.simulation import simulate

CONFIG = "square8_2p"


@pytest.fixture(scope="module")
def run():
    """The facts of an hour, and the rules."""
    world, facts = World(11, configs=(CONFIG,)), []

    async def main():
        await world.run(hours=1.5)
        facts.extend(await read_facts(world.engine().kv, CONFIG))

    simulate(main())
    return facts, world.rules


def changed(facts, before, **changes):
    """The facts with one of them changed, and its number."""
    number = facts.index(before)
    told = list(facts)
    told[number] = msgspec.structs.replace(told[number], **changes)
    return told, number + 1


def test_every_decision_of_a_run_follows(run):
    facts, rules = run
    assert sum(isinstance(fact, Promoted) for fact in facts) > 2
    assert replay(CONFIG, facts, rules) == []


def test_the_rules_of_the_run_count_and_not_those_of_today(run):
    facts, rules = run
    assert isinstance(facts[0], Noted)
    assert replay(CONFIG, facts, msgspec.structs.replace(rules, simulations=7)) == []


def test_a_promotion_that_the_evidence_does_not_give_is_found(run):
    facts, rules = run
    promoted = [at for at, fact in enumerate(facts) if isinstance(fact, Promoted)]
    early = facts[: promoted[0]] + facts[promoted[0] + 1 :]
    assert replay(CONFIG, early, rules)  # without it, nothing after it follows
    told, number = changed(facts, facts[promoted[-1]], evidence={"head_to_head": {"games": 1000}})
    (found,) = replay(CONFIG, told, rules)
    assert found.number == number
    assert "evidence" in found.why


def test_an_order_that_nobody_wanted_is_found(run):
    facts, rules = run
    issued = [fact for fact in facts if isinstance(fact, JobIssued) and fact.kind == "selfplay"][-1]
    params = {**issued.order.params, "seed": 99}
    told, number = changed(facts, issued, order=msgspec.structs.replace(issued.order, params=params))
    found = replay(CONFIG, told, rules)
    assert found[0].number == number
    assert "params.seed is 99" in found[0].why


def test_a_moment_shows_what_was_planned_and_that_the_next_fact_follows(run):
    facts, rules = run
    number = next(at for at, fact in enumerate(facts) if isinstance(fact, Promoted))
    found = moment(CONFIG, facts, rules, at=number)
    assert found.fact == facts[number]
    assert found.divergence is None
    assert found.made.decided[0].model == facts[number].model
    assert moment(CONFIG, facts, rules, at=len(facts)).fact is None
