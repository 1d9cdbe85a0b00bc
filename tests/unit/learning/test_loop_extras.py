"""Examinations after promotions, tournaments of champions, and blocks that are written down and end."""

import msgspec
import pytest
from feedback_kit import promote, trained_model
from learning_story import RULES, Story

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.engine.ports import Claimant
from ringrift.learning.announcements import Silent
from ringrift.learning.controller import Controller
from ringrift.learning.doctor.examination import examine
from ringrift.learning.doctor.findings import ExaminationContext, Level, read_diagnoses
from ringrift.learning.facts.facts import Blocked, Staged
from ringrift.learning.facts.records import ModelState
from ringrift.learning.facts.results import problem_with
from ringrift.learning.judging.ratings import rate
from ringrift.learning.plan.evaluation import under_judgment
from ringrift.learning.plan.orders import Snapshot
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.stages import breaker_delay_s
from ringrift.learning.replay import replay
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.job.protocol import JobReport

HOURS = 3600.0


def planned(story, rules=RULES):
    return plan(Snapshot(story.state, rules, story.now_s))


def wanted(story, stage, rules=RULES):
    return next((each for each in planned(story, rules).wanted if each.stage == stage), None)


def said(story, stage, rules=RULES):
    return next(each for each in planned(story, rules).explanations if each.stage == stage)


def a_champion():
    story = Story()
    promote(story, trained_model(story))
    return story


# --- blocks ---------------------------------------------------------------------------------------------


def broken_training(story):
    story.play()
    story.check()
    story.export()
    story.fail(story.issue("train", wanted(story, "train").order), "the disk is full")


def blocks(story):
    return [fact for fact in planned(story).decided if isinstance(fact, Blocked)]


def test_a_stage_that_rests_is_blocked_in_writing_once_and_until_a_time():
    story = Story()
    broken_training(story)
    (block,) = blocks(story)
    assert (block.stage, block.until_s) == ("train", story.now_s + breaker_delay_s(1, RULES))
    assert "the disk is full" in block.reason
    story.write(block)
    assert blocks(story) == []
    assert said(story, "train").until_s == block.until_s
    story.now_s = block.until_s
    assert wanted(story, "train") is not None, "it ends by itself"


def test_every_further_failure_blocks_for_longer_and_success_ends_it():
    story, rests = Story(), []
    broken_training(story)
    for _ in range(4):
        (block,) = blocks(story)
        rests.append(block.until_s - story.now_s)
        story.write(block)
        story.now_s = block.until_s
        story.fail(story.issue("train", wanted(story, "train").order), "the disk is full")
    assert rests == sorted(rests)
    assert rests[-1] > rests[0]
    story.now_s += 1_000
    story.train()
    assert blocks(story) == []


def test_a_run_that_was_recorded_without_blocks_replays():
    story = Story()
    broken_training(story)
    story.now_s += RULES.retry_s
    story.issue("train", wanted(story, "train").order)
    assert [each for each in replay(story.state.config, story.facts, RULES) if "blocked" in each.why] == []


# --- the states of a model --------------------------------------------------------------------------------


def test_a_candidate_is_staged_when_only_the_last_gate_is_open():
    story = a_champion()
    candidate = trained_model(story)
    story.evaluate(candidate, story.state.champion, wins=80, losses=10)
    (fact,) = [each for each in planned(story).decided if isinstance(each, Staged)]
    told = story.write(fact)
    assert [name for name, _ in told] == ["PROMOTION_CANDIDATE"]
    assert under_judgment(story.state).state is ModelState.STAGING
    gates = wanted(story, "evaluate").order.params["gates"]
    assert [(gate["opponent"], gate["test"]) for gate in gates] == [("random", "floor"), ("mcts:32", "none")]
    story.evaluate(candidate, "random", wins=80, losses=0)
    (promotion,) = planned(story).decided
    told = [name for name, _ in story.write(promotion)]
    assert "MODEL_PROMOTED" in told
    assert "PROMOTION_CANDIDATE" not in told, "that was told when it was staged"
    history = [name for _, name, _ in story.state.models[candidate].history]
    assert history == ["training", "evaluating", "staging", "production"]


# --- examinations -------------------------------------------------------------------------------------------


def test_a_new_champion_is_examined_but_not_too_often():
    story = a_champion()
    assert wanted(story, "diagnose") is None
    assert said(story, "diagnose").until_s == story.state.first_s + RULES.diagnose_every_s
    story.now_s += RULES.diagnose_every_s
    order = wanted(story, "diagnose").order
    assert order.inputs["model.safetensors"] == story.state.champion
    assert len(order.params["shards"]) == 1
    story.end(story.issue("diagnose", order))
    assert wanted(story, "diagnose") is None
    promote(story, trained_model(story))
    assert wanted(story, "diagnose") is None
    story.now_s += RULES.diagnose_every_s
    assert wanted(story, "diagnose") is not None
    assert wanted(story, "diagnose", msgspec.structs.replace(RULES, diagnose_every_s=0)) is None


def diagnosis(config, model):
    finding = {"check": "symmetry", "level": "problem", "text": "the network sees ghosts", "config": config}
    return {
        "version": 1,
        "config": config,
        "model": model,
        "at_s": 5.0,
        "findings": [finding],
        "canary": None,
    }


@pytest.mark.parametrize("fields", [diagnosis("square8_2p", "m"), {"config": "hex8_2p"}, {"findings": 3}])
def test_what_an_examination_finds_reaches_the_doctor(fields):
    async def main():
        runtime = SimulatedRuntime()
        engine = memory_engine(runtime, MemoryStore())
        controller = Controller(engine, runtime, RULES, announcer=Silent())
        await controller.open(["square8_2p"])
        story = a_champion()
        story.now_s += RULES.diagnose_every_s
        for fact in [*story.facts]:
            await controller.write("square8_2p", fact)
        state = controller.state("square8_2p")
        order = wanted(story, "diagnose").order
        report = JobReport(
            status="done", worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=1.0, fields=fields
        )
        await _order_and_end(controller, engine, order, report)
        found = await read_diagnoses(engine.kv, "square8_2p")
        if fields.get("findings") == 3 or fields["config"] != "square8_2p":
            assert not found
            assert state.failures["diagnose"].in_a_row == 1
        else:
            context = ExaminationContext(now_s=runtime.now_s(), rules=RULES, diagnoses={"square8_2p": found})
            told = {each.text for each in examine([state], context) if each.level is Level.PROBLEM}
            assert "the network sees ghosts" in told
        await engine.close()

    simulate(main())


async def _order_and_end(controller, engine, order, report):
    """Let the loop order it, and a worker end it."""
    made = plan(controller._snapshot(controller.state("square8_2p")))
    made.wanted.clear()
    made.want("diagnose", order, "examine")
    choice = type("Choice", (), {"config": "square8_2p", "wanted": made.wanted[0]})
    await controller._issue(choice, share=1.0)
    await controller._hand_out()
    for claim in await engine.queue.claim(Claimant(worker="w"), lease_s=30, limit=10):
        if claim.kind == "diagnose":
            await engine.queue.complete(claim.id, token=claim.token, result=report.as_result())
    await controller.take_in_ends()


# --- tournaments --------------------------------------------------------------------------------------------


def champions(story, count):
    for _ in range(count):
        model = trained_model(story)
        if story.state.champion is None:
            story.evaluate(model, "random", wins=40, losses=8)
        else:
            story.evaluate(model, story.state.champion, wins=50, losses=30)
        promote(story, model)
    return [change.model for change in story.state.promotions]


def test_the_last_champions_meet_every_few_hours_if_there_is_a_new_one():
    story = Story()
    models = champions(story, 7)
    assert wanted(story, "tournament") is None
    story.now_s += 4 * HOURS
    order = wanted(story, "tournament").order
    files = [name for name in order.inputs if name.endswith(".safetensors")]
    assert [order.inputs[name] for name in files] == models[-5:]
    before = {name: found.high - found.low for name, found in rate(story.state.matches).items()}
    texts = order.params["players"]
    pairs = [
        {"players": [one, other], "games": 16, "wins": 6, "draws": 0, "losses": 10, "score": 0.375,
         "places": [6, 10], "pairs": [1, 0, 6, 0, 1], "first_places": 6}
        for at, one in enumerate(texts) for other in texts[at + 1 :]
    ]  # fmt: skip
    ((name, told),) = story.end(story.issue("tournament", order), pairs=pairs)
    assert (name, told["evaluation_type"], told["games_played"]) == (
        "TOURNAMENT_COMPLETED",
        "round_robin",
        160,
    )
    assert set(told["ratings"]) == set(models[-5:])
    played = [match for match in story.state.matches if match.purpose == "rating"]
    assert len(played) == 10
    assert {match.players for match in played} == {2}
    after = {name: found.high - found.low for name, found in rate(story.state.matches).items()}
    assert after[models[-1]] < before[models[-1]], "the champion's place is surer than before"
    story.now_s += 4 * HOURS
    assert wanted(story, "tournament") is None, "nothing new would come out of it"
    champions(story, 1)
    story.now_s += 4 * HOURS
    assert wanted(story, "tournament") is not None


def test_two_champions_need_no_tournament_and_a_candidate_goes_first():
    story = Story()
    champions(story, 2)
    story.now_s += 5 * HOURS
    assert wanted(story, "tournament") is None
    champions(story, 1)
    trained_model(story)
    story.now_s += 5 * HOURS
    kinds = [each.kind for each in planned(story).wanted]
    assert kinds.index("evaluate") < kinds.index("tournament")


def test_a_tournament_without_games_or_with_strangers_is_a_failure():
    story = Story()
    champions(story, 3)
    story.now_s += 5 * HOURS
    order = wanted(story, "tournament").order
    job = story.issue("tournament", order)
    from_elsewhere = {"players": [order.params["players"][0], "mcts:999"], "games": 2, "wins": 1, "draws": 0,
                      "losses": 1, "score": 0.5}  # fmt: skip
    for pairs, why in (([], "no games"), ([from_elsewhere], "not asked for")):
        report = JobReport(
            status="done", worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=1.0, fields={"pairs": pairs}
        )
        assert why in problem_with(story.state, story.state.open_jobs[job], report)
