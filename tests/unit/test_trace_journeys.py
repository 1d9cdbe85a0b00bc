"""The modules that a journey passes are counted by what is called, wherever that is."""

import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from trace_journeys import JOURNEYS, Trace, markdown, plain

from ringrift.errors import described
from ringrift.redaction import hide_secrets


def test_modules_of_calls_are_noted_in_their_order_and_calls_of_others_are_not():
    trace = Trace()
    hide_secrets(None, "", {})
    with trace:
        described(ValueError())
        Path("a").name.upper()
        hide_secrets(None, "", {})
    described(ValueError())
    assert trace.modules == ("errors", "redaction")


def test_threads_are_seen():
    trace = Trace()
    with trace:
        thread = threading.Thread(target=hide_secrets, args=(None, "", {}))
        thread.start()
        thread.join()
    assert trace.modules == ("redaction",)


def test_what_another_process_saw_is_taken_in(tmp_path):
    there, here = Trace(), Trace()
    with there:
        described(ValueError())
        hide_secrets(None, "", {})
    there.write(tmp_path / "there.json")
    with here:
        hide_secrets(None, "", {})
    here.add_file(tmp_path / "there.json")
    assert here.modules == ("redaction", "errors")


def test_helpers_the_engine_and_other_subjects_do_not_count():
    passed = ("runtime", "engine.ports", "learning.plan.plan", "jobs.host", "events.event")
    assert [each for each in passed if JOURNEYS["game"].counts(each)] == ["learning.plan.plan"]
    assert [each for each in passed if JOURNEYS["file"].counts(each)] == ["learning.plan.plan", "jobs.host"]
    assert [each for each in passed if JOURNEYS["event"].counts(each)] == [
        "learning.plan.plan",
        "jobs.host",
        "events.event",
    ]


def test_the_lists():
    game = JOURNEYS["game"]
    assert plain(game, ["work.shares"], ["runtime"]) == [
        "a game to a champion: 1 modules, at most 35",
        "   1 work.shares",
        "  not counted (1): runtime",
    ]
    assert "| `learning/` | `plan.plan`, `loop` |" in markdown(
        game, ["learning.plan.plan", "work.shares", "learning.loop"]
    )
