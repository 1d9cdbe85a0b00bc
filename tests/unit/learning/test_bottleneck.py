"""What holds learning back is named in one sentence with its number."""

import msgspec
import pytest
from feedback_kit import promote, trained_model
from learning_story import RULES, Story

from ringrift.learning.facts.facts import Rejected
from ringrift.learning.facts.state import EndedJob
from ringrift.learning.plan.stages import SlotHold, StopReason, slot_note, stages_note
from ringrift.learning.status_view import RECENT_S, bottleneck, idle_slots
from ringrift.work.worker.records import RunningRecord, WorkerRecord


def cause(story, rules=RULES, after_s=0.0):
    found = bottleneck(story.state, rules, now_s=story.now_s + after_s)
    return found.cause, found.text


def learned(rows=1000):
    """A config with a champion whose rows are all trained on: 4 steps of each."""
    story = Story()
    promote(story, trained_model(story))
    story.play(rows=rows)
    story.check()
    story.export()
    while story.state.bucket.available > 0:
        story.train()
    return story


def worked(story, **cpu_s):
    """As `learned`, with other processor times of the jobs so far."""
    story.state.recent_jobs.clear()
    for kind, seconds in cpu_s.items():
        story.state.recent_jobs.append(EndedJob(kind, story.now_s, wall_s=seconds, cpu_s=seconds))
    return story


def test_before_the_first_network_its_rows_are_counted():
    story = Story()
    story.play(rows=60)
    story.check()
    assert cause(story) == ("games", "games: 60 of 100 rows are there for the first network")
    story.play(rows=60)
    story.check()
    assert cause(story) == ("training", "training: 120 rows wait for the first network")


def test_rows_that_training_does_not_keep_up_with():
    story = learned()
    spent = sum(model.steps_spent for model in story.state.models.values())
    story.play(rows=8000)
    story.check()
    earned = 4 * sum(shard.rows for shard in story.state.shards.values())
    assert cause(story) == (
        "training",
        f"training: rows earn {earned / spent:.1f} x as many steps as are trained",
    )
    trained_long_ago = msgspec.structs.replace(story.state.newest_model, made_s=story.now_s - 2 * RECENT_S)
    story.state.models = {trained_long_ago.digest: trained_long_ago}
    trainings = story.state.bucket.available / RULES.bucket.chunk_steps
    assert cause(story)[1] == f"training: rows have earned {trainings:.1f} trainings, and none was made"


@pytest.mark.parametrize(
    ("cpu_s", "expected"),
    [
        ({"selfplay": 60, "train": 20, "evaluate": 20}, "judging: it takes 20% of processor time"),
        (
            {"selfplay": 70, "train": 20, "export": 10},
            "preparing: checking and exporting take 10% of processor time",
        ),
        (
            {"selfplay": 60, "evaluate": 16, "validate": 24},
            "preparing: checking and exporting take 24% of processor time",
        ),
    ],
)
def test_work_that_takes_more_than_it_should(cpu_s, expected):
    assert cause(worked(learned(), **cpu_s))[1] == expected


def test_jobs_that_take_long_to_start():
    story = worked(learned(), selfplay=70, train=20)
    story.state.recent_jobs.append(EndedJob("train", story.now_s, wall_s=10.0, cpu_s=10.0, start_s=0.4))
    assert cause(story)[0] == "games"
    story.state.recent_jobs.append(EndedJob("selfplay", story.now_s, wall_s=20.0, cpu_s=20.0, start_s=3.2))
    assert cause(story) == (
        "starting",
        "starting: jobs take 12% of the workers' time before their first game or step",
    )


def test_games_are_named_when_nothing_else_costs_more_than_it_should():
    story = worked(learned(), selfplay=70, train=20, evaluate=10)
    story.state.first_s = story.now_s - 100
    assert cause(story) == ("games", "games: training waits 80% of the time for rows")


def test_candidates_that_do_not_get_past_the_champion():
    story = learned()
    for _ in range(4):
        story.play(rows=1000)
        story.check()
        story.export()
        model = story.train()
        story.write(Rejected(at_s=story.now_s, model=model, gate="champion", reason="not stronger"))
    worked(story, selfplay=70, train=20)
    named, text = cause(story)
    assert named == "candidates"
    assert text.startswith("candidates: the last 4 were not shown to be stronger than the champion")


def test_a_stage_that_failed_and_a_config_that_nobody_works_on():
    story = learned()
    story.fail(story.issue("train", story.state.last_done["train"].order))
    assert cause(story) == ("failures", "train: it failed once and rests")
    quiet = learned()
    minutes = 2 * RECENT_S / 60
    assert cause(quiet, after_s=2 * RECENT_S) == (
        "workers",
        f"workers: no job of it has ended for {minutes:.0f} min",
    )


def test_slots_without_work_are_counted_over_all_configs():
    story = worked(learned(), selfplay=300, train=100)
    other = worked(learned(), selfplay=200)
    now_s = story.now_s + 1
    workers = [a_worker("w1", slots=2), a_worker("w2", slots=1, stopping=True)]
    running = [msgspec.convert({**RUNNING, "started_s": now_s - 30}, RunningRecord)]
    idle = idle_slots([story.state, other.state], workers, running, now_s=now_s)
    # 600 s of jobs that ended and 30 s of one under way, of two slots for 15 minutes.
    assert (idle.slots, idle.seconds) == (2, RECENT_S)
    assert idle.idle == pytest.approx(2 - 630 / RECENT_S)
    found = bottleneck(story.state, RULES, now_s=now_s, idle=idle)
    assert (found.cause, found.text) == ("slots", "idle slots: 1.3 of 2 had no work in the last 15.0 min")


def test_slots_that_are_busy_or_have_just_come_are_not_idle():
    story = worked(learned(), selfplay=RECENT_S - 10)
    full = idle_slots([story.state], [a_worker("w1")], [], now_s=story.now_s)
    assert bottleneck(story.state, RULES, now_s=story.now_s, idle=full).cause != "slots"
    new = a_worker("w1", started_s=story.now_s - 20)
    assert idle_slots([Story().state], [new], [], now_s=story.now_s) is None


RUNNING = {
    "job_id": "x", "kind": "train", "config": "c", "worker": "w1", "node": "n", "pid": 1, "attempt": 1,
    "stage": "", "done": 0, "total": None, "rate": 0, "eta_s": None, "at_s": 0, "elapsed_s": 0, "cpu_s": 0,
    "memory_mb": 0, "line": "",
}  # fmt: skip


def a_worker(name, *, slots=1, started_s=0.0, stopping=False):
    return WorkerRecord(
        name=name, node="n", pid=1, slots=slots, busy=0, kinds=None, capabilities=("cpu",), cpus=1, gpus=0,
        memory_mb=1, memory_free_mb=1, load=0.0, started_s=started_s, at_s=0.0, stopping=stopping,
    )  # fmt: skip


def test_there_is_always_an_answer():
    assert bottleneck(Story().state, RULES, now_s=1000.0).text
    story = worked(learned(), selfplay=1)
    story.state.bucket = replace_bucket(story.state.bucket, RULES.bucket.chunk_steps)
    assert cause(story)[0] in ("nothing", "training")


def replace_bucket(bucket, available):
    return msgspec.structs.replace(bucket, earned=bucket.spent + bucket.forfeited + available)


def test_a_stopped_daemon_is_named_before_everything_that_follows_from_it():
    story = Story()
    story.play()
    stopped = {"training_trigger": StopReason("stopped by a person: anna, a test", by_person=True)}
    story.write(stages_note(story.state, stopped, at_s=story.now_s))
    found = bottleneck(story.state, RULES, now_s=story.now_s)
    assert found.cause == "stages"
    assert found.text.startswith("a stopped daemon: TRAINING_TRIGGER is stopped: stopped by a person: anna")
    inputs = {"feedback_loop": StopReason("not started")}
    story.write(stages_note(story.state, inputs, at_s=story.now_s))
    assert bottleneck(story.state, RULES, now_s=story.now_s).cause != "stages", "learning goes on without it"


def test_a_training_of_somebody_else_is_named():
    story = learned()
    story.write(slot_note(story.state, SlotHold(holder="process 7 on n2"), at_s=story.now_s))
    assert cause(story)[0] == "stages"
    assert "process 7 on n2 holds the training slot (since " in cause(story)[1]
