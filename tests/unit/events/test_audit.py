"""The audit tells a gap from a plan."""

import json

import pytest

from ringrift.events.catalog.audit import (
    ComponentWiring,
    LastSeen,
    Wiring,
    WiringState,
    audit,
    audit_entries,
    audit_summary,
)
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.table import CATALOG


def only(*names):
    return {name: CATALOG[name] for name in names}


def judge(name, *, emits=(), subscribes=()):
    wiring = Wiring.collect([ComponentWiring("part", "supervisor", tuple(emits), tuple(subscribes))])
    (entry,) = audit(wiring, only(name)).events
    return entry


def test_a_wired_event_says_who_sends_and_hears_it():
    wiring = Wiring.collect(
        [
            ComponentWiring("daemon_manager", "supervisor", emits=(DataEventType.DAEMON_STARTED,)),
            ComponentWiring("health_manager", "component_health", subscribes=("daemon_started",)),
        ]
    )
    report = audit(wiring, only("DAEMON_STARTED"))
    assert report.ok
    assert report.events[0].state is WiringState.CONNECTED
    assert report.events[0].reason == "sent by daemon_manager; heard by health_manager"


def test_an_orphan_whose_built_consumer_is_silent_is_a_fault():
    entry = judge("DAEMON_PERMANENTLY_FAILED", emits=["DAEMON_PERMANENTLY_FAILED"])
    assert entry.state is WiringState.ORPHAN
    assert not entry.accepted
    assert "health_manager" in entry.reason


def test_a_consumer_still_to_come_does_not_excuse_one_that_is_built():
    entry = judge("COORDINATOR_HEARTBEAT", emits=["COORDINATOR_HEARTBEAT"])
    assert not entry.accepted
    assert entry.reason == "health_manager should hear it and does not subscribe"


def test_an_orphan_whose_consumer_is_not_built_waits_for_it():
    entry = judge("NODE_SUSPECT", emits=["NODE_SUSPECT"])
    assert entry.accepted
    assert entry.reason == "capability not built yet: node_recovery (comes with the cluster)"


def test_an_internal_event_needs_no_consumer():
    entry = judge("STATE_PERSISTED", emits=["STATE_PERSISTED"])
    assert entry.accepted
    assert "internal" in entry.reason


def test_a_dead_subscription_is_a_fault_when_its_emitter_is_built():
    entry = judge("DAEMON_STOPPED", subscribes=["DAEMON_STOPPED"])
    assert entry.state is WiringState.DEAD_SUBSCRIPTION
    assert not entry.accepted
    assert "daemon_manager should send it" in entry.reason


def test_a_dead_subscription_waits_for_an_emitter_that_is_not_built():
    entry = judge("BUDGET_ALERT", subscribes=["BUDGET_ALERT"])
    assert entry.state is WiringState.DEAD_SUBSCRIPTION
    assert entry.accepted
    assert entry.reason == "capability not built yet: capacity_provisioning (comes with the cluster)"


@pytest.mark.parametrize(
    ("name", "state"), [("HOST_ONLINE", WiringState.PLANNED), ("HANDLER_FAILED", WiringState.UNWIRED)]
)
def test_an_event_that_nobody_touches(name, state):
    entry = judge(name)
    assert entry.state is state
    assert entry.accepted == (state is WiringState.PLANNED)


def test_names_outside_the_catalog_are_reported():
    report = audit(Wiring.collect([ComponentWiring("part", "supervisor", subscribes=("MY_EVENT",))]), {})
    assert [(e.name, e.state, e.accepted) for e in report.events] == [
        ("MY_EVENT", WiringState.UNKNOWN, False)
    ]


def test_an_unmapped_high_impact_event_is_a_fault():
    catalog = only("MODEL_CORRUPTED", "STATE_PERSISTED")
    assert audit(Wiring(), catalog).unmapped_high_impact == ()
    report = audit(Wiring.collect([], crossing=()), catalog)
    assert [entry.name for entry in report.unmapped_high_impact] == ["MODEL_CORRUPTED"]
    assert not report.ok


def test_live_subscriptions_replace_what_components_say():
    wiring = Wiring.collect(
        [ComponentWiring("health_manager", "component_health", subscribes=("DAEMON_STARTED",))],
        subscriptions=[("daemon_stopped", "health_manager"), ("DAEMON_STOPPED", "health_manager")],
    )
    assert wiring.subscriptions == {"DAEMON_STOPPED": ("health_manager",)}


def test_the_report_of_the_whole_catalog():
    wiring = Wiring.collect(
        [ComponentWiring("daemon_manager", "supervisor", ("DAEMON_STARTED",), ("BACKPRESSURE_RELEASED",))]
    )
    report = audit(wiring)
    data = json.loads(json.dumps(report.to_dict()))
    assert {"events", "orphans", "dead_subscriptions", "unmapped_high_impact"} <= data.keys()
    assert {entry["name"] for entry in data["events"]} == set(CATALOG)
    assert all(entry["reason"] for entry in data["events"])
    assert [entry["name"] for entry in data["orphans"]] == ["DAEMON_STARTED"]
    assert [entry["name"] for entry in data["dead_subscriptions"]] == ["BACKPRESSURE_RELEASED"]
    assert data["unmapped_high_impact"] == []
    assert not data["ok"]
    rows = audit_entries(report)
    assert ("orphan", "DAEMON_STARTED") in [(row.state, row.name) for row in rows]
    assert len(audit_entries(report, everything=True)) == len(CATALOG)
    assert "1 orphans" in audit_summary(report)


def test_what_happens_stands_beside_what_is_declared():
    wiring = Wiring.collect([ComponentWiring("part", "supervisor", ("DAEMON_STARTED",), ("DAEMON_STARTED",))])
    seen = {"DAEMON_STARTED": LastSeen(sent_s=5.0, received_s=None)}
    report = audit(wiring, only("DAEMON_STARTED", "DAEMON_STOPPED"), seen=seen)
    started, stopped = report.to_dict()["events"]
    assert (started["last_sent_s"], started["last_received_s"]) == (5.0, None)
    assert (stopped["last_sent_s"], stopped["last_received_s"]) == (None, None)
    assert "1 seen sent in this folder" in audit_summary(report)
