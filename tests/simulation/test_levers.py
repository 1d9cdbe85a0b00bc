"""Every daemon of a default run has a test that stops it in a running machine and compares what happens.

The tables of the page on stages are made of these tests and of the daemon table:
`PYTHONPATH=tests:tests/unit/data python tests/simulation/test_levers.py` writes them.
"""

from pathlib import Path

import msgspec
import test_backup_daemons
import test_data_daemons
import test_event_daemons
import test_stage_daemons
import test_upkeep_daemons
import test_watch_daemons

from ringrift.daemons.registry import product_registry
from ringrift.daemons.requests import REQUESTS, DaemonRequest, DaemonRequests, DaemonVerb, what_it_means
from ringrift.daemons.types import DaemonType
from ringrift.engine.memory import memory_engine
from ringrift.learning.doctor.examination import DoctorRounds
from ringrift.learning.plan.rules import LearningRules
from ringrift.runtime import SystemRuntime

PAGE = Path(__file__).parents[2] / "docs" / "stages.md"
OTHERS = {
    **test_stage_daemons.LOOP_SHOWN_BY,
    **test_backup_daemons.SHOWN_BY,
    **test_data_daemons.SHOWN_BY,
    **test_event_daemons.SHOWN_BY,
    **test_upkeep_daemons.SHOWN_BY,
    **test_watch_daemons.SHOWN_BY,
}
BEFORE_OTHERS = """
## The other daemons of a default run

They plan nothing of a config. What one of them did is not done while it is stopped, and the rest goes on.
`ringrift doctor` and `ringrift status` name each that somebody stopped, with who, why, since when, and what
is not done meanwhile.

"""


def table(heading, shown_by):
    rows = [f"| daemon | {heading} | shown by |", "|---|---|---|"]
    for name in sorted(shown_by):
        about = product_registry()[DaemonType(name)].about
        rows.append(f"| `{name.upper()}` | {about} | `{shown_by[name].__name__}` |")
    return "\n".join(rows) + "\n"


def tables():
    stages = table("what it does for the loop", test_stage_daemons.SHOWN_BY)
    return stages + BEFORE_OTHERS + table("what it does", OTHERS)


def default_run():
    return {
        spec.daemon_type.value
        for spec in product_registry()
        if "standard" in spec.profiles and not spec.unavailable_reason and spec.deprecated_for is None
    }


def test_every_daemon_of_a_default_run_has_a_test_that_stops_it():
    assert sorted(default_run() - {*test_stage_daemons.SHOWN_BY, *OTHERS}) == []
    assert OTHERS.keys() <= default_run()


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
        assert each["text"] == f"{name.upper()} is stopped: {since}; without it: {what_it_means(name)}"
        assert (each["level"], each["advice"]) == ("notice", f"`ringrift daemons start {name}` ends this.")


def test_the_page_shows_every_daemon_of_a_default_run():
    assert PAGE.read_text(encoding="utf8").endswith(tables()), f"run python {Path(__file__).name}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf8")
    PAGE.write_text(text[: text.index("| daemon |")] + tables(), encoding="utf8")
