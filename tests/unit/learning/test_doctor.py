"""Every check of the doctor finds its planted fault, and a sound run gives no finding."""

import msgspec
import pytest
from feedback_kit import Ear
from learning_story import RULES, Story, artifact

from ringrift.engine.memory import memory_engine
from ringrift.learning.doctor.checks import file_findings
from ringrift.learning.doctor.examination import ClockWatch, DoctorRounds, examine, largest_step_back_s
from ringrift.learning.doctor.findings import (
    Diagnosis,
    ExaminationContext,
    Finding,
    Level,
    keep_diagnosis,
    read_diagnoses,
)
from ringrift.learning.facts.facts import Noted
from ringrift.learning.facts.records import BucketRules
from ringrift.learning.plan.evaluation import open_candidates
from ringrift.learning.plan.orders import selfplay_order, validate_order
from ringrift.learning.plan.stages import SlotHold, slot_note
from ringrift.runtime import SystemRuntime
from ringrift.testing.simulation import SimulatedRuntime, simulate
from ringrift.work.worker.records import RunningRecord, WorkerRecord

CONFIG = "square8_2p"
GIB = 2**30
FINE_LOSSES = {
    "train": {"policy": 1.0, "value": 0.5},
    "held": {"policy": 1.1, "value": 0.5},
    "best_held": 1.6,
    "calibration": {"error": 0.05, "bias": 0.0, "bins": [{"rows": 500, "said": 0.1, "was": 0.1}]},
}


def a_run(config=CONFIG, **losses):
    """A sound start: games, a check, a training, a rating."""
    story = Story(config)
    story.play(games=100)
    story.check()
    story.export()
    model = story.train(**{**FINE_LOSSES, **losses})
    story.evaluate(model, "random", wins=60, losses=4)
    return story


def context(story, **changes):
    around = {
        "now_s": story.now_s + 60,
        "rules": RULES,
        "is_running": True,
        "started_s": story.now_s - 7200,
        "workers": (worker(),),
        "disk_free_bytes": 100 * GIB,
        "disk_total_bytes": 200 * GIB,
    }
    return ExaminationContext(**{**around, **changes})


def worker(name="w1", **changes):
    record = WorkerRecord(
        name=name, node="n1", pid=1, slots=1, busy=1, kinds=None, capabilities=("cpu",), cpus=1, gpus=0,
        memory_mb=1, memory_free_mb=1, load=0.0, started_s=0.0, at_s=7200.0, done=9,
    )  # fmt: skip
    return msgspec.structs.replace(record, **changes)


def running(job):
    return RunningRecord(
        job_id=job, kind="train", config=CONFIG, worker="w1", node="n", pid=1, attempt=1, stage="", done=0,
        total=None, rate=0, eta_s=None, started_s=0, at_s=0, elapsed_s=0, cpu_s=0, memory_mb=0, line="",
    )  # fmt: skip


def found(story, **changes):
    return {(each.check, each.level) for each in examine([story.state], context(story, **changes))}


def test_a_sound_run_gives_no_finding():
    assert found(a_run()) == set()


def test_a_pause_is_told_and_is_no_fault_and_idle_workers_are_none_either():
    story = a_run()
    assert found(story, paused={CONFIG: "by anna"}) == {("paused", Level.NOTICE)}
    idle = worker(started_s=0.0, at_s=7200.0, done=0, busy=0)
    assert ("workers", Level.WARNING) in found(story, workers=(idle,))
    whole = found(story, workers=(idle,), paused={CONFIG: "by anna"}, run_paused="by anna")
    assert whole == {("run_paused", Level.NOTICE)}


# --- the files ------------------------------------------------------------------------------------------


class NoBlobs:
    async def size(self, digest):
        return None


@pytest.mark.parametrize(("is_champion", "level"), [(False, Level.NOTICE), (True, Level.PROBLEM)])
async def test_a_champion_that_is_nowhere_is_a_problem_and_other_files_may_be_elsewhere(is_champion, level):
    story = a_run()
    (model,) = story.state.models
    story.state.champion = model if is_champion else None
    (finding,) = await file_findings(NoBlobs(), [story.state])
    assert (finding.level, finding.check) == (level, "files")
    assert model in finding.text


# --- the learning ---------------------------------------------------------------------------------------


def test_a_missing_hold_out_is_found():
    assert ("hold_out", Level.PROBLEM) in found(a_run(held=None, best_held=None))
    few = msgspec.structs.replace(RULES, hold_out=0.01)  # of 100 games one, or by chance none
    assert ("hold_out", Level.NOTICE) in found(a_run(held=None, best_held=None), rules=few)
    without = msgspec.structs.replace(RULES, hold_out=0.0)
    assert ("hold_out", Level.PROBLEM) in found(a_run(), rules=without)


@pytest.mark.parametrize(("error", "level"), [(0.2, Level.WARNING), (0.5, Level.PROBLEM)])
def test_values_that_are_off_are_found_and_the_direction_is_said(error, level):
    off = {"error": error, "bias": error, "bins": [{"rows": 500, "said": 0.5, "was": 0.5 - error}]}
    story = a_run(calibration=off)
    assert ("calibration", level) in found(story)
    assert "too hopeful" in examine([story.state], context(story))[0].text


def test_a_model_that_learns_by_heart_is_found():
    assert ("losses", Level.WARNING) in found(a_run(held={"policy": 3.0, "value": 1.0}))


def test_a_loss_that_is_no_number_is_found():
    assert ("losses", Level.PROBLEM) in found(a_run(train={"policy": float("nan"), "value": 1.0}))


def test_training_beyond_what_rows_paid_for_is_found():
    story = a_run()
    story.state.spend(20_000)
    assert ("ratio", Level.PROBLEM) in found(story)


def test_rows_that_nobody_trains_on_are_found():
    story = a_run()
    rules = BucketRules(chunk_steps=4000, cap_steps=40_000, rows_first_min=100)
    assert story.state.bucket_rules == rules
    for _ in range(3):
        story.play(games=50, rows=2000)
    story.check()
    assert ("ratio", Level.WARNING) in found(story)  # earned, not spent
    for _ in range(8):
        story.play(games=50, rows=2000)
    story.check()
    texts = [each.text for each in examine([story.state], context(story)) if each.check == "ratio"]
    assert "never trained" in texts[0]  # beyond the cap


def diagnosed(*shares):
    return {
        CONFIG: [
            Diagnosis(
                config=CONFIG, model=f"m{n}", at_s=n, findings=(), canary={"kept": share, "positions": 50}
            )
            for n, share in enumerate(shares)
        ]
    }


def test_solved_positions_tell_a_model_that_forgot_and_models_that_do_not_improve():
    story = a_run()
    assert found(story, diagnoses=diagnosed(0.5, 0.6, 0.7)) == set()
    assert ("canary", Level.PROBLEM) in found(story, diagnoses=diagnosed(0.5, 0.8, 0.6))
    assert ("canary", Level.WARNING) in found(story, diagnoses=diagnosed(0.5, 0.5, 0.5, 0.5))


def test_what_the_job_found_is_passed_on():
    told = Finding(check="symmetries", level=Level.PROBLEM, text="turned moves differ", config=CONFIG)
    fine = Finding(check="overfit", level=Level.FINE, text="fits", config=CONFIG)
    diagnoses = {CONFIG: [Diagnosis(config=CONFIG, model=None, at_s=1.0, findings=(told, fine))]}
    assert found(a_run(), diagnoses=diagnoses) == {("symmetries", Level.PROBLEM)}


# --- the games ------------------------------------------------------------------------------------------


def checked_with(story, worker_name="w1", games=100, simulations=None, **reasons):
    """One more shard, of whose games some are refused for *reasons*."""
    digest = story.play(games=games, rows=games * 20)
    shard = story.state.shards[digest]
    refused = sum(reasons.values())
    story.state.set_shard(shard, worker=worker_name)
    if simulations is not None:
        story.state.set_shard(shard, simulations=simulations)
    job = story.issue("validate", validate_order(story.state, [shard]))
    counts = {"shard": digest, "games": games, "refused": refused, "rows": (games - refused) * 20}
    story.end(job, artifact("report", f"report-{digest}", reasons=reasons, **counts))


@pytest.mark.parametrize(("count", "level"), [(5, Level.WARNING), (60, Level.PROBLEM)])
def test_duplicated_games_are_found(count, level):
    story = a_run()
    checked_with(story, duplicate=count)
    assert ("duplicates", level) in found(story)


def test_games_that_end_before_their_end_are_found():
    story = a_run()
    checked_with(story, truncated=20, unfinished=10)
    assert ("cut_off", Level.PROBLEM) in found(story)


def test_games_that_grew_too_long_are_found():
    story = a_run()
    job = story.issue("selfplay", selfplay_order(story.state, RULES, simulations=32))
    story.end(job, artifact("shard", "long", games=1, rows=20), cut_off=30)
    assert ("cut_off", Level.PROBLEM) in found(story)


def drawn(config, draws, games=100):
    story = a_run(config)
    last = story.state.matches[-1]
    story.state.matches[-1] = msgspec.structs.replace(last, games=games, draws=draws, wins=games - draws)
    return found(story)


def test_draws_are_odd_where_there_are_none_and_where_nearly_all_are():
    assert ("draws", Level.PROBLEM) in drawn(CONFIG, 5)
    assert drawn("connect_four_2p", 5) == set()
    assert ("draws", Level.WARNING) in drawn("connect_four_2p", 80)


def test_games_against_the_rules_are_found():
    story = a_run()
    checked_with(story, illegal_move=60)
    assert ("refusals", Level.PROBLEM) in found(story)


def test_a_worker_with_far_more_refusals_than_the_others_is_named():
    story = a_run()
    checked_with(story, "good")
    checked_with(story, "bad", illegal_move=30)
    findings = examine([story.state], context(story))
    told = next(each for each in findings if each.check == "worker_refusals")
    assert "worker bad" in told.text
    assert "recall --worker bad" in told.advice


def test_games_without_search_are_found():
    story = a_run()
    checked_with(story, simulations=1)
    assert ("search_budget", Level.PROBLEM) in found(story)


def test_judging_far_from_playing_is_found():
    apart = msgspec.structs.replace(RULES, evaluation_simulations=800)
    assert ("search_budget", Level.WARNING) in found(a_run(), rules=apart)


# --- the run --------------------------------------------------------------------------------------------


def test_a_stage_that_fails_and_fails_is_found_with_its_error():
    story = a_run()
    for _ in range(RULES.breaker_failures):
        story.fail(story.issue("train", validate_order(story.state, [])), "out of memory")
    assert ("breakers", Level.PROBLEM) in found(story)
    assert "out of memory" in examine([story.state], context(story))[0].text


def test_trainings_that_wait_for_the_holder_of_a_slot_do_not_starve():
    story = a_run()
    story.play(rows=20_000)
    story.check()
    story.export()
    later = {"now_s": story.now_s + 1800, "started_s": 0.0}
    assert ("starving", Level.WARNING) in found(story, **later)
    hold = SlotHold(holder="process 7 on n2", since_s=story.now_s, job_id="square8_2p_1")
    story.write(slot_note(story.state, hold, at_s=story.now_s))
    checks = ("starving", "training_slot")
    trained = [each for each in examine([story.state], context(story, **later)) if each.check in checks]
    trained = [each for each in trained if "train" in each.text]
    assert [(each.check, each.level) for each in trained] == [("training_slot", Level.NOTICE)]
    assert "process 7 on n2 holds the training slot for square8_2p_1 (since " in trained[0].text
    story.write(slot_note(story.state, None, at_s=story.now_s))
    assert ("training_slot", Level.NOTICE) not in found(story, **later)


def test_ordered_work_that_nobody_takes_is_found_unless_it_is_under_way_or_paused():
    story = a_run()
    job = story.issue("train", validate_order(story.state, []))
    later = {"now_s": story.now_s + 1300, "started_s": 0.0}
    assert ("starving", Level.WARNING) in found(story, **later)
    assert ("starving", Level.PROBLEM) in found(story, **{**later, "now_s": story.now_s + 4000})
    assert ("starving", Level.WARNING) not in found(story, **later, paused={CONFIG: "by a user"})
    starved = [
        each
        for each in examine([story.state], context(story, **later, running=(running(job),)))
        if each.evidence.get("stage") == "train"
    ]
    assert starved == []


def test_a_run_that_brings_no_games_is_found():
    story = a_run()
    assert ("starving", Level.WARNING) in found(story, now_s=story.now_s + 1800, started_s=0.0)


def test_a_training_that_does_not_come_is_found_although_a_candidate_is_to_be_judged():
    story = a_run()
    story.play(games=5000)
    story.check()
    assert open_candidates(story.state)
    around = context(story, now_s=story.now_s + 1800, started_s=0.0)
    late = [each.evidence.get("stage") for each in examine([story.state], around)]
    assert "train" in late


def test_workers_that_are_gone_idle_or_broken_are_found():
    story = a_run()
    assert ("workers", Level.PROBLEM) in found(story, workers=())
    assert ("workers", Level.WARNING) in found(story, workers=(worker(done=0, busy=0),))
    assert ("workers", Level.PROBLEM) in found(story, workers=(worker(done=0, busy=0, failed=4),))
    assert ("workers", Level.PROBLEM) in found(story, workers=(worker(done=1, failed=40),))
    assert found(story, workers=(), is_running=False) == set()
    assert found(story, workers=(), has_workers=False) == set(), "nobody asked for one"


@pytest.mark.parametrize(("free", "level"), [(4 * GIB, Level.WARNING), (GIB // 2, Level.PROBLEM)])
def test_a_full_disk_is_seen_coming(free, level):
    assert ("disk", level) in found(a_run(), disk_free_bytes=free)


def test_a_clock_that_was_set_is_found():
    assert ("clock", Level.WARNING) in found(a_run(), clock_jump_s=-3600.0)
    notes = [Noted(at_s=at_s, topic="t", text="") for at_s in (100.0, 200.0, 50.0, 60.0)]
    assert largest_step_back_s(notes) == -150.0
    assert largest_step_back_s(notes[:2]) == 0.0


def test_findings_come_gravest_first():
    story = a_run(held=None, best_held=None)
    story.fail(story.issue("export", validate_order(story.state, [])))
    levels = [each.level.severity for each in examine([story.state], context(story, disk_free_bytes=4 * GIB))]
    assert len(levels) >= 3
    assert levels == sorted(levels, reverse=True)


# --- rounds ---------------------------------------------------------------------------------------------


class JumpyRuntime(SimulatedRuntime):
    """A wall clock that can be set."""

    set_by_s = 0.0

    def wall_s(self):
        return super().wall_s() + self.set_by_s


def test_a_clock_is_watched_against_the_one_that_only_goes_forward():
    async def main():
        runtime = JumpyRuntime(seed=1)
        watch = ClockWatch(runtime)
        await runtime.sleep(100)
        assert abs(watch.look()) < 1e-3
        runtime.set_by_s = -500.0
        assert watch.look() == pytest.approx(-500.0)
        assert watch.look() == pytest.approx(-500.0)  # the largest stays

    simulate(main())


def test_rounds_are_made_once_a_minute(tmp_path):
    story = a_run(held=None, best_held=None)

    async def main():
        runtime = SimulatedRuntime(seed=1)
        engine = memory_engine(runtime)
        rounds = DoctorRounds(engine.kv, runtime, data_dir=tmp_path)
        told = await rounds.findings([story.state], RULES)
        assert "hold_out" in {each["check"] for each in told}
        await keep_diagnosis(
            engine.kv,
            Diagnosis(
                config=CONFIG,
                model="m",
                at_s=1.0,
                findings=(Finding(check="overfit", level=Level.PROBLEM, text="it cannot", config=CONFIG),),
            ),
        )
        assert "overfit" not in {each["check"] for each in await rounds.findings([story.state], RULES)}
        await runtime.sleep(61)
        assert "overfit" in {each["check"] for each in await rounds.findings([story.state], RULES)}

    simulate(main())


async def test_a_new_finding_is_told_once(tmp_path):
    ear, story, runtime = Ear(), a_run(held=None, best_held=None), SystemRuntime()
    kv = memory_engine(runtime).kv
    for _ in range(2):
        rounds = DoctorRounds(kv, runtime, data_dir=tmp_path, router=ear.router)
        await rounds.findings([story.state], RULES)
        await rounds.findings([story.state], RULES)
    assert ear.counts()["HEALTH_ALERT"] == 2  # once by each
    told = ear.take()["HEALTH_ALERT"]
    assert (told["alert_type"], told["severity"]) == ("doctor_hold_out", "error")


def test_old_diagnoses_make_room():
    async def main():
        engine = memory_engine(SimulatedRuntime(seed=1))
        for number in range(60):
            await keep_diagnosis(
                engine.kv, Diagnosis(config=CONFIG, model=f"m{number}", at_s=number, findings=())
            )
        kept = await read_diagnoses(engine.kv, CONFIG)
        assert [each.model for each in kept] == [f"m{number}" for number in range(10, 60)]

    simulate(main())
