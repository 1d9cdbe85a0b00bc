"""Games in progress between two jobs: who has them, who may go on with them, what a recall takes along."""

import msgspec
import pytest
from learning_story import RULES, Story, artifact

from ringrift.learning.facts.facts import JobEnded, Recalled
from ringrift.learning.facts.records import ShardState
from ringrift.learning.facts.results import problem_with
from ringrift.learning.facts.state import fold
from ringrift.learning.plan.orders import Snapshot, selfplay_order
from ringrift.learning.plan.plan import plan
from ringrift.learning.plan.trust import recall_effect, recompute_order
from ringrift.work.job.protocol import JobReport

TIMED = msgspec.structs.replace(RULES, selfplay_program="ringrift", selfplay_slots=8)


class Turns(Story):
    """Self-play jobs of a limited time."""

    def order(self):
        return selfplay_order(self.state, TIMED, simulations=32)

    def turn(self, name, *, games=0, left=8, order=None, turns=0, worker="w1"):
        """A job that finishes *games* games and leaves others."""
        job, self.worker = self.issue("selfplay", order or self.order()), worker
        made = [artifact("shard", f"shard-{name}", games=games, rows=20 * games)] if games else []
        if left:
            made.append(artifact("unfinished", name, games=left, moves=10 * left))
        self.end(job, *made, resumed_turns=turns)
        return job

    def available(self):
        return [each.digest for each in self.state.available_unfinished()]

    def report(self, *artifacts, **fields):
        return JobReport(
            status="done", worker="w", node="n", started_s=0.0, wall_s=1.0, cpu_s=1.0,
            artifacts=artifacts, fields=fields,
        )  # fmt: skip


def resumed(order):
    return [order.inputs[name.rpartition("/")[2]] for name in order.params["resume"]]


def test_our_own_program_is_given_a_time_and_games_to_go_on_with():
    story = Turns()
    first = story.order()
    assert (first.params["seconds"], first.params["hand_over"], first.params["resume"]) == (20.0, True, [])
    story.turn("one", left=5)
    order = story.order()
    assert resumed(order) == ["one"]
    assert order.params["resume"] == ["{inputs}/unfinished-0.json"]
    story.issue("selfplay", order)
    assert resumed(story.order()) == []  # somebody has it


def test_the_plan_says_that_unfinished_games_go_on():
    story = Turns()
    story.turn("one", left=5)
    (wanted,) = [
        each for each in plan(Snapshot(story.state, TIMED, story.now_s)).wanted if each.kind == "selfplay"
    ]
    assert "20 s of games, first 5 that are unfinished" in wanted.reason
    assert resumed(wanted.order) == ["one"]


@pytest.mark.parametrize("program", ["", "user"])
def test_a_program_of_a_users_own_is_given_a_number_of_games(program):
    story = Turns()
    story.turn("one")
    order = selfplay_order(
        story.state, msgspec.structs.replace(TIMED, selfplay_program=program), simulations=32
    )
    assert order.params["games"] == RULES.selfplay_games_first
    assert not {"seconds", "hand_over", "resume", "prove", "opening_plies"} & order.params.keys()
    assert order.inputs == {}


def test_the_furthest_played_come_first_and_no_more_than_a_job_plays_at_a_time():
    story = Turns()
    none_taken = story.order()
    for name, games in (("a", 3), ("b", 7), ("c", 2), ("d", 4), ("e", 1)):
        story.turn(name, left=games, order=none_taken)
    assert resumed(story.order()) == ["e", "d", "c"]  # all as far; of those the newest that there is room for
    assert sum(story.state.unfinished[each].games for each in ("e", "d", "c")) <= TIMED.selfplay_slots
    job = story.issue("selfplay", none_taken)
    story.end(job, artifact("unfinished", "far", games=3, moves=90))
    assert resumed(story.order()) == ["far", "e", "d"]
    job = story.issue("selfplay", none_taken)
    story.end(job, artifact("unfinished", "not begun", games=3, moves=0))
    assert "not begun" not in resumed(story.order())


def test_what_a_failed_or_cancelled_job_had_is_there_again_but_not_for_ever():
    story = Turns()
    story.turn("one")
    job = story.issue("selfplay", story.order())
    assert story.available() == []
    story.write(JobEnded(at_s=story.now_s, job_id=job, cancelled=True, error="asked for"))
    assert story.available() == ["one"]
    story.fail(story.issue("selfplay", story.order()))
    assert story.available() == ["one"]
    story.fail(story.issue("selfplay", story.order()))
    assert story.available() == []  # it may be what makes them fail
    assert fold("square8_2p", story.facts, bucket_rules=RULES.bucket).unfinished == story.state.unfinished


def test_what_a_job_took_over_and_ended_well_is_gone():
    story = Turns()
    story.turn("one")
    story.turn("two", games=3, turns=1)
    assert story.available() == ["two"]
    assert story.state.shards["shard-two"].resumed == ("one",)


def test_a_job_without_a_finished_game_is_a_good_one():
    story = Turns()
    job = story.state.open_jobs[story.issue("selfplay", story.order())]
    left = artifact("unfinished", "one", games=8, moves=80)
    assert problem_with(story.state, job, story.report(left)) == ""
    assert "brought no shard and no unfinished" in problem_with(story.state, job, story.report())


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ({"games": 0}, "games"),
        ({"games": -1}, "games"),
        ({"moves": -1}, "moves"),
        ({"moves": 10**9}, "moves"),
        ({"games": None}, "games"),
        ({"games": 9}, "9 games; 8 were ordered"),
    ],
)
def test_odd_counts_of_unfinished_games_are_a_failure(counts, told):
    story = Turns()
    job = story.state.open_jobs[story.issue("selfplay", story.order())]
    bad = artifact("unfinished", "one", **{"games": 4, "moves": 10, **counts})
    assert told in problem_with(story.state, job, story.report(bad))


def test_games_that_were_handed_over_do_not_count_as_too_many():
    story = Turns()
    story.turn("one", left=8)
    job = story.state.open_jobs[story.issue("selfplay", story.order())]
    all_of_them = artifact("shard", "s", games=16, rows=9)
    assert problem_with(story.state, job, story.report(all_of_them)) == ""
    one_more = artifact("shard", "s", games=17, rows=9)
    assert "8 were ordered and 8 handed to it" in problem_with(story.state, job, story.report(one_more))


def test_unfinished_games_of_another_model_or_that_nobody_asked_for_are_a_failure():
    story = Turns()
    left = artifact("unfinished", "one", games=8, moves=80)
    job = story.state.open_jobs[story.issue("selfplay", story.order())]
    assert "by model ffff" in problem_with(story.state, job, story.report(left, generator_sha256="f" * 64))
    again = artifact("unfinished", "two", games=8, moves=80)
    assert "nobody asked for" in problem_with(story.state, job, story.report(left, again))
    untimed = selfplay_order(story.state, RULES, simulations=32)
    job = story.state.open_jobs[story.issue("selfplay", untimed)]
    assert "nobody asked for" in problem_with(story.state, job, story.report(left))
    assert problem_with(story.state, job, story.report(left, resumed_turns=10**6))


def recall(**fields):
    return Recalled(at_s=1.0, recall_id="r", reason="a test", **fields)


def test_a_recall_takes_every_game_along_that_a_worker_had_part_in():
    """bad begins games, good goes on with them twice, and plays others that nobody else had."""
    story = Turns()
    story.turn("by-bad", worker="bad")
    story.turn("second", games=2, turns=1, worker="good")
    story.turn("third", games=2, turns=2, worker="good")
    story.turn("last", games=2, turns=1, worker="good")  # only of games that "third" began
    by_bad = recall(worker="bad")
    told = {each.shard for each in recall_effect(story.state, by_bad).shards}
    assert told == {"shard-second", "shard-third"}
    story.write(by_bad)
    recalled = {each.digest for each in story.state.shards.values() if each.state is ShardState.RECALLED}
    assert recalled == told
    assert story.available() == ["last"]
    story.write(msgspec.structs.replace(by_bad, withdrawn=True))
    assert all(each.state is not ShardState.RECALLED for each in story.state.shards.values())


def test_recalled_games_in_progress_are_not_played_on():
    story = Turns()
    story.turn("by-bad", worker="bad")
    story.write(recall(worker="bad"))
    assert resumed(story.order()) == []
    story.turn("other", worker="good")
    assert resumed(story.order()) == ["other"]


def test_games_that_were_handed_over_are_searched_again_by_another():
    story = Turns()
    story.turn("one", left=3)
    story.turn("two", left=3, turns=1)
    story.worker = "w2"
    held = story.state.unfinished["two"]
    order = recompute_order(story.state, held, story.state.standing("w1").recent[-1][1])
    assert order.params["shard"] == "{inputs}/two.unfinished.json"
    assert order.inputs == {"unfinished-0.json": "one", "two.unfinished.json": "two"}
    assert order.not_by == ("w1",)
    assert {digest for digest, _ in story.state.standing("w1").recent} == {"one", "two"}
    told = {"game": "g", "move": 3, "what": "policy off by 0.5"}
    for worker in ("w2", "w3"):
        job, story.worker = story.issue("recompute", order), worker
        story.end(job, agrees=False, games=3, moves=9, first_difference=told)
    assert story.state.standing("w1").faults == 1


def test_a_file_that_may_be_the_reason_of_a_failure_goes_alone_so_that_no_other_is_given_up():
    story = Turns()
    none_taken = story.order()
    for name in ("bad", "good", "fine"):
        story.turn(name, left=2, order=none_taken)
    tried = []
    while order := resumed(story.order()):
        tried.append(order)
        job = story.issue("selfplay", story.order())
        if "bad" in order:
            story.fail(job)
        else:
            story.end(job, artifact("shard", f"shard-{job}", games=2, rows=40))
    assert sorted(tried[0]) == ["bad", "fine", "good"]
    assert sorted(tried[1:]) == [["bad"], ["fine"], ["good"]]


def test_a_file_with_more_games_than_are_played_at_a_time_now_goes_alone():
    story = Turns()
    none_taken = story.order()
    story.turn("many", left=TIMED.selfplay_slots + 1, order=none_taken)
    story.turn("few", left=2, order=none_taken)
    orders = []
    for _ in range(2):
        orders.append(resumed(story.order()))
        story.issue("selfplay", story.order())
    assert sorted(orders) == [["few"], ["many"]]
