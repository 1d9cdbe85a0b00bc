"""Every daemon of a default run has a test that stops it in a running machine and compares what happens.

The tables of the page on stages are made of these tests and of the daemon table:
`PYTHONPATH=tests:tests/unit/data python tests/simulation/test_levers.py` writes them.
"""

from itertools import chain
from pathlib import Path

import msgspec
import test_backup_daemons
import test_data_daemons
import test_event_daemons
import test_stage_daemons
import test_upkeep_daemons
import test_watch_daemons

from ringrift.coordination.coordinator_dependencies import COORDINATOR_REGISTRY, InitPattern
from ringrift.daemons.registry import product_registry
from ringrift.daemons.requests import REQUESTS, DaemonRequest, DaemonRequests, DaemonVerb, what_it_means
from ringrift.daemons.types import DaemonType
from ringrift.engine.memory import memory_engine
from ringrift.learning.doctor.examination import DoctorRounds
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import SystemRuntime

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "stages.md"
OTHERS = {
    **test_stage_daemons.LOOP_SHOWN_BY,
    **test_backup_daemons.SHOWN_BY,
    **test_data_daemons.SHOWN_BY,
    **test_event_daemons.SHOWN_BY,
    **test_upkeep_daemons.SHOWN_BY,
    **test_watch_daemons.SHOWN_BY,
}
# Coordinator: what can be asked of it, what that does, and the test that shows it at work.
VERBS = {
    "dead_letter_queue": [
        (
            "`retry_failed_events()`",
            "delivers events again to the handler that failed at them, and to no other",
            "unit/events/test_dead_letters.py::test_only_the_subscription_that_failed_is_retried",
        ),
    ],
    "ephemeral_guard": [
        (
            "`request_evacuation(host)`",
            "brings what only that node has to one that stays",
            "unit/data/test_data_ephemeral.py::test_an_evacuation_is_carried_out_and_not_only_written_down",
        ),
        (
            "`queue_write_through(game, host)`",
            "has a node that may vanish send these games first",
            "unit/data/test_data_ephemeral.py"
            "::test_games_that_were_asked_for_leave_first_and_are_done_when_they_arrived",
        ),
    ],
    "evaluation_daemon": [
        (
            "`request_evaluation(config)`",
            "has a model play the games that were asked for",
            "simulation/test_coordinator_verbs.py"
            "::test_games_that_are_requested_of_a_model_are_played_and_no_others",
        ),
    ],
    "global_task_coordinator": [
        (
            "`reserve_node(node, purpose)`",
            "keeps a node for one type of task",
            "unit/work/test_tasks_coordination.py"
            "::test_a_reserved_node_is_kept_for_its_purpose_until_its_time",
        ),
        (
            "`pause()`, `drain()`, `emergency_stop(reason)`, `resume()`",
            "no work is begun until the end of it, and `explain` says why",
            "simulation/test_coordinator_verbs.py"
            "::test_work_rests_while_the_task_coordinator_pauses_drains_or_stops_in_an_emergency",
        ),
    ],
    "health_manager": [
        (
            "`register_recovery(subject, recover)`",
            "has it called when the subject fails again and again",
            "scenarios/test_health_events.py::test_of_two_coordinators_that_get_worse_one_is_brought_back",
        ),
    ],
    "job_scheduler": [
        (
            "`schedule(job)`",
            "orders a job, the urgent ones first",
            "unit/work/test_work_scheduling.py::test_critical_jobs_go_first",
        ),
        (
            "`preempt(job, for_job_id)`",
            "gives a job's place to a more urgent one; it comes back",
            "unit/work/test_work_scheduling.py::test_a_preempted_job_comes_back",
        ),
    ],
    "optimization_coordinator": [
        (
            "`trigger_cmaes()`, `trigger_nas()`, `trigger_pbt()`",
            "order a search",
            "simulation/test_coordinator_verbs.py::test_a_search_is_ordered_when_it_is_triggered_and_not_before",
        ),
        (
            "`cancel(run_id)`",
            "ends a search",
            "simulation/test_coordinator_verbs.py::test_a_search_that_is_cancelled_is_not_begun",
        ),
        (
            "what a search found",
            "changes the next orders, and is kept or dropped by what is learned with it",
            "simulation/test_tuning_kept_or_dropped.py"
            "::test_what_a_search_found_changes_the_games_and_is_kept_or_dropped_by_what_is_learned_from_them",
        ),
    ],
    "pipeline_orchestrator": [
        (
            "`trigger_selfplay()`, `trigger_data_sync()`, `trigger_npz_export()`, `trigger_training()`, "
            "`trigger_evaluation()`",
            "have the loop look again at once, and say what the plan makes of the stage",
            "unit/coordination/test_coordination_pipeline.py"
            "::test_asking_wakes_the_loop_and_gives_the_word_of_the_plan",
        ),
    ],
    "sync_coordinator": [
        (
            "`execute_priority_sync()`",
            "brings the files that are most at risk",
            "unit/data/test_data_sync_advice.py::test_advice_can_be_carried_out",
        ),
    ],
    "task_coordinator": [
        (
            "`cancel_task(task_id)`",
            "cancels a job that is under way",
            "unit/work/test_tasks_coordination.py::test_cancelling_a_task_cancels_its_claim_in_the_queue",
        ),
    ],
    "training_coordinator": [
        (
            "`request_training_slot(board, players)`, `release_training_slot(job_id)`",
            "no other training of the config is ordered or begun in between, and `explain` says who holds it",
            "simulation/test_training_slots.py"
            "::test_while_somebody_holds_the_slot_the_loop_orders_no_training_and_says_who_holds_it",
        ),
    ],
    "transfer_verifier": [
        (
            "`quarantine(path, reason)`",
            "sets a file aside with its story",
            "unit/data/test_data_transfer_verification.py::test_a_bad_file_is_set_aside_with_its_story",
        ),
    ],
}
# These only deliver, show or tell, or are daemons of the tables above under their other name.
WITHOUT_VERB = {
    "auto_export_daemon",
    "curriculum_integration",
    "event_coordinator",
    "metrics_orchestrator",
    "model_coordinator",
    "model_distribution_daemon",
    "orphan_detection_daemon",
    "quality_monitor_daemon",
    "queue_populator",
    "selfplay_orchestrator",
    "selfplay_scheduler",
    "training_activity",
}
BEFORE_VERBS = """
## What can be asked of coordinators

The others only show what there is and tell what changes.

"""
BEFORE_OTHERS = """
## The other daemons of a default run

They plan nothing of a config. What one of them did is not done while it is stopped, and the rest goes on.
`ringrift explain`, `ringrift doctor` and `ringrift status` name each that somebody stopped, with who, why,
since when, and what is not done meanwhile.

"""


def table(heading, shown_by):
    rows = [f"| daemon | {heading} | shown by |", "|---|---|---|"]
    for name in sorted(shown_by):
        about = product_registry()[DaemonType(name)].about
        rows.append(f"| `{name.upper()}` | {about} | `{shown_by[name].__name__}` |")
    return "\n".join(rows) + "\n"


def tables():
    stages = table("what it does for the loop", test_stage_daemons.SHOWN_BY)
    return stages + BEFORE_OTHERS + table("what it does", OTHERS) + BEFORE_VERBS + table_of_verbs()


def table_of_verbs():
    rows = ["| coordinator | asked for | what it does | shown by |", "|---|---|---|---|"]
    for name, verbs in sorted(VERBS.items()):
        rows += [
            f"| `{name}` | {verb} | {does} | `{test.partition('::')[2]}` |" for verb, does, test in verbs
        ]
    return "\n".join(rows) + "\n"


def default_run():
    return {
        spec.daemon_type.value
        for spec in product_registry()
        if "standard" in spec.profiles and not spec.unavailable_reason and spec.deprecated_for is None
    }


def test_every_daemon_of_a_default_run_has_a_test_that_stops_it():
    assert sorted(default_run() - {*test_stage_daemons.SHOWN_BY, *OTHERS}) == []
    assert OTHERS.keys() <= default_run()


def test_every_coordinator_with_a_verb_has_a_test_of_it():
    built = {
        name
        for name, spec in COORDINATOR_REGISTRY.items()
        if not spec.not_built_reason and spec.pattern not in (InitPattern.SKIP, InitPattern.DELEGATE)
    }
    assert built == VERBS.keys() | WITHOUT_VERB
    for _verb, _does, test in chain.from_iterable(VERBS.values()):
        path, _, name = test.partition("::")
        assert f"def {name}(" in (TESTS / path).read_text(encoding="utf8"), test


async def test_the_doctor_and_the_status_name_what_stopped_daemons_leave_undone(tmp_path):
    """With who stopped each, why and since when; a daemon that was started again is named no more."""
    kv, runtime, rules = memory_engine(SystemRuntime()).kv, SystemRuntime(), LearningRules()
    requests, at_s = DaemonRequests(kv), 1_700_000_000.0
    asked = DaemonRequest(
        daemon="", want=DaemonVerb.STOP, by="anna", reason="the board is needed", at_s=at_s, done_s=at_s
    )
    for name in default_run():
        await requests.ask(msgspec.structs.replace(asked, daemon=name))
    await kv.put(REQUESTS + "dlq_retry", b"no request")
    await requests.ask(msgspec.structs.replace(asked, daemon="maintenance", want=DaemonVerb.START))
    await requests.ask(msgspec.structs.replace(asked, daemon="of_another_version"))
    findings = await DoctorRounds(kv, runtime, data_dir=tmp_path).findings([], rules)
    told = {each["evidence"]["daemon"]: each for each in findings if each["check"] == "stopped_daemons"}
    assert told.keys() == default_run() - {"dlq_retry", "maintenance"}
    for name, each in told.items():
        since = "anna, the board is needed (since 2023-11-14 22:13:20 UTC)"
        assert each["text"] == f"{name.upper()} is stopped: {since}; without it: {what_it_means(name, told)}"
        assert (each["level"], each["advice"]) == ("notice", f"`ringrift daemons start {name}` ends this.")


def test_the_page_shows_every_daemon_of_a_default_run():
    assert PAGE.read_text(encoding="utf8").endswith(tables()), f"run python {Path(__file__).name}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf8")
    PAGE.write_text(text[: text.index("| daemon |")] + tables(), encoding="utf8")
