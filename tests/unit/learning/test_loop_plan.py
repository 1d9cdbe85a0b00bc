"""The plan never waits for what cannot come, and never orders more than an order can hold."""

import msgspec
import pytest
from feedback_kit import checked_shard
from learning_story import RULES, Story, artifact

from ringrift.engine.memory import MemoryStore, memory_engine
from ringrift.learning.facts.facts import SLOTS_TOPIC, JobIssued, Noted
from ringrift.learning.facts.ledger import Ledger
from ringrift.learning.facts.records import BucketRules, Shard, ShardState
from ringrift.learning.facts.state import REFUSED_EARN_NOTHING, fold
from ringrift.learning.plan.orders import Snapshot, validate_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.rules import PLAN_VERSION, rules_note
from ringrift.learning.plan.training_data import SHARDS_MAX
from ringrift.testing.simulation import SimulatedRuntime, simulate


def planned(story, rules=RULES):
    return plan(Snapshot(story.state, rules, story.now_s))


def wanted(made):
    return {each.kind for each in made.wanted}


def said(made, stage):
    return next(each.reason for each in made.explanations if each.stage == stage)


def with_bucket(**changes):
    return msgspec.structs.replace(RULES, bucket=msgspec.structs.replace(RULES.bucket, **changes))


def many_checked_shards(story, count):
    for number in range(count):
        story.state.add_shard(
            Shard(
                digest=f"{number:08x}" * 8, job_id="j", name="s", state=ShardState.CHECKED, games=1, rows=1,
                model=None, simulations=32, worker="w", made_s=1.0, cpu_s=1.0, report=f"{number:08x}" * 8,
            )
        )  # fmt: skip


def test_an_export_of_very_many_shards_is_cut_and_can_be_stored():
    story = Story()
    many_checked_shards(story, 5_000)
    export = next(each for each in planned(story).wanted if each.kind == "export")
    shards = [name for name in export.order.inputs if name.endswith(".shard.db")]
    assert len(shards) == SHARDS_MAX
    assert f"{4_999:08x}" * 8 in export.order.inputs.values(), "the newest are kept"
    assert "500 shards" in export.reason

    async def main():
        engine = memory_engine(SimulatedRuntime(), MemoryStore())
        ledger = await Ledger.open(engine.kv, story.state.config, bucket_rules=BucketRules())
        fact = JobIssued(at_s=1.0, job_id="j", kind="export", order=export.order, priority=1, reason="r")
        await ledger.append(fact)
        await engine.close()
        assert ledger.state.facts == 1

    simulate(main())


@pytest.mark.parametrize("bucket", [{"rows_first_min": 0}, {"steps_per_row": 1e-6}])
def test_games_are_played_while_no_training_can_happen(bucket):
    rules = with_bucket(**bucket)
    story = Story()
    story.state.bucket_rules = rules.bucket
    assert "selfplay" in wanted(planned(story, rules))
    story.play()
    story.check()
    made = planned(story, rules)
    assert wanted(made) & {"selfplay", "export"}
    if "steps_per_row" in bucket:
        assert "selfplay" in wanted(made)


def test_games_rest_while_the_first_model_can_be_made():
    story = Story()
    story.play()
    story.check()
    assert wanted(planned(story)) == {"export"}


def test_games_go_on_when_all_there_are_are_unfit():
    story = Story()
    shard = story.play()
    job = story.issue("validate", validate_order(story.state, story.state.unchecked()))
    story.end(job, artifact("report", "r", shard=shard, games=50, refused=30, rows=800))
    assert story.state.rows == 800
    made = planned(story)
    assert wanted(made) == {"selfplay"}
    assert "fit" in said(made, "export")


def test_a_piece_of_training_follows_the_gpus_there_are():
    """What a GPU earned in seconds is not waited for when it has gone."""
    rules = with_bucket(chunk_steps=1_000, cap_steps=10_000_000)
    story = Story()
    noted(story, gpus=1)
    story.play(rows=1_000_000)
    story.check()
    story.export()
    story.train(samples_per_s=50_000.0)
    assert "train" not in wanted(planned(story, rules))
    noted(story, gpus=0)
    assert "train" in wanted(planned(story, rules))


def noted(story, *, gpus):
    details = {"slots": 1, "configs": 1, "gpus": gpus}
    story.now_s += 1
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="", details=details))


@pytest.mark.parametrize("slots", [1, 2, 64, 1000])
def test_games_without_a_network_are_as_many_as_the_first_model_needs(slots):
    """They are fast: a second of them on every slot would be most of what the next minutes learn from."""
    rules = msgspec.structs.replace(
        RULES, bucket=BucketRules(rows_first_min=2_000), selfplay_program="ringrift"
    )
    story = Story()
    told = {"slots": slots, "configs": 1}
    story.write(Noted(at_s=story.now_s, topic=SLOTS_TOPIC, text="as the workers say", details=told))
    ordered = []
    while orders := [each.order for each in planned(story, rules).wanted if each.kind == "selfplay"]:
        ordered.append(story.issue("selfplay", orders[0]))
        assert len(ordered) <= slots
    assert "enough for the first model" in said(planned(story, rules), "selfplay")
    rows = 0
    for job in ordered:
        games = story.state.open_jobs[job].order.params["games"]
        rows += 60 * games
        story.end(job, artifact("shard", f"s-{job}", games=games, rows=60 * games))
        assert "selfplay" not in wanted(planned(story, rules)), "rows are expected of the jobs under way"
    assert 2_000 <= rows <= 6_000


def test_more_games_without_a_network_follow_when_they_are_shorter_than_expected():
    rules = msgspec.structs.replace(
        RULES, bucket=BucketRules(rows_first_min=2_000), selfplay_program="ringrift"
    )
    story = Story()
    first = story.issue("selfplay", planned(story, rules).wanted[0].order)
    games = story.state.open_jobs[first].order.params["games"]
    assert games == 50  # of 40 rows, as is expected of a game while none is known
    story.end(first, artifact("shard", "short", games=games, rows=8 * games))
    (order,) = (each.order for each in planned(story, rules).wanted if each.kind == "selfplay")
    assert order.params["games"] == 200


def ordered_games(story, rules=RULES, jobs_max=50):
    """Order games for as long as they are wanted; how many jobs, and what the plan says then."""
    for jobs in range(jobs_max):
        made = planned(story, rules)
        games = [each for each in made.wanted if each.kind == "selfplay"]
        if not games:
            return jobs, said(made, "selfplay")
        story.issue("selfplay", games[0].order)
    return jobs_max, ""


def test_games_that_are_being_played_count_as_waiting():
    rules = msgspec.structs.replace(with_bucket(chunk_steps=4_000), selfplay_program="ringrift")
    story = Story()
    story.play(rows=2_000)
    story.check()
    story.export()
    story.train(samples_per_s=1_000.0)
    story.play(rows=100)
    story.check()
    jobs, why = ordered_games(story, rules)
    assert 4 <= jobs < 50
    assert "are being played" in why


def after_poor_games(plan_version):
    """A config whose earned trainings were made, and whose newer games are all refused for their score."""
    story = Story()
    noted = rules_note(story.state, RULES, at_s=1.0)
    story.write(msgspec.structs.replace(noted, details={**noted.details, "plan": plan_version}))
    checked_shard(story, quality=0.8)
    story.export()
    while "train" in wanted(planned(story)):
        story.train()
    assert len(story.state.models) == 2, "the games have earned two pieces"
    for _ in range(10):
        checked_shard(story, quality=0.1)
    return story


def test_games_that_are_refused_for_their_score_earn_no_training_on_the_old_rows():
    story = after_poor_games(PLAN_VERSION)
    made = planned(story)
    assert "train" not in wanted(made)
    assert "the newest 20,000 rows earn nothing: the quality of its games is 0.10" in said(made, "train")
    again = fold(story.state.config, story.facts, bucket_rules=RULES.bucket)
    assert again.bucket == story.state.bucket
    checked_shard(story, quality=0.8)
    story.export()
    made = planned(story)
    assert "new rows have earned 8,000 sample-steps" in next(
        each.reason for each in made.wanted if each.kind == "train"
    )


def test_what_an_earlier_version_of_the_plan_let_refused_games_earn_stays_earned():
    story = after_poor_games(REFUSED_EARN_NOTHING - 1)
    earned = story.state.bucket.earned
    story.write(rules_note(story.state, RULES, at_s=story.now_s))
    assert story.state.bucket.earned == earned
    assert "train" in wanted(planned(story))
    checked_shard(story, quality=0.1)
    assert story.state.bucket.earned == earned
