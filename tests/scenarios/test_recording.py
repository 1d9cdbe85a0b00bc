"""The recording itself: what counts as proven, and what does not."""

import ast

import pytest
from recording import declared, published_by, scenario

from ringrift.coordination.event_emitters import emit_work_completed
from ringrift.coordination.event_router import get_router
from ringrift.coordination.selfplay_orchestrator import get_selfplay_orchestrator
from ringrift.learning.announcements import RouterAnnouncer

WORK = {"work_id": "w1", "work_type": "selfplay"}


async def test_an_event_that_a_test_sends_is_not_proven(recording):
    get_selfplay_orchestrator().wire()
    await get_router().publish("TASK_FAILED", {"task_id": "t", "error": "e"})
    assert recording.lacking(["TASK_FAILED"]) == [
        "TASK_FAILED was not sent by product code (only by test_recording)"
    ]


async def test_an_emitter_hands_on_what_a_test_sends(recording):
    await emit_work_completed(**WORK, node_id="n")
    assert "only by test_recording" in recording.lacking(["WORK_COMPLETED"])[0]


async def test_a_handler_of_a_test_proves_nothing_where_the_product_is_to_hear(recording):
    get_router().subscribe("WORK_QUEUED", lambda event: None)
    events = RouterAnnouncer(get_router())
    events._noted.append(("WORK_QUEUED", WORK))
    await events.publish()
    assert recording.lacking(["WORK_QUEUED"]) == [
        "WORK_QUEUED was sent by ringrift.learning.announcements and not received by product code"
        " (only by test_recording)"
    ]


def test_an_event_that_the_catalog_does_not_have_is_refused():
    with pytest.raises(ValueError, match="NO_SUCH_EVENT"):
        scenario("NO_SUCH_EVENT")


def test_what_a_file_sends_itself_is_found_without_running_it():
    text = """
@scenario("MODEL_PROMOTED", "WORK_QUEUED")
async def test_one():
    await router.publish(DataEventType.MODEL_PROMOTED, {})
    await router.publish("work_queued", {})
    await emit_selfplay_complete(config_key="hex8_2p")
"""
    tree = ast.parse(text)
    assert declared(tree) == {"test_one": {"MODEL_PROMOTED", "WORK_QUEUED"}}
    assert [event for _, event in published_by(tree)] == [
        "MODEL_PROMOTED",
        "WORK_QUEUED",
        "SELFPLAY_COMPLETE",
    ]
