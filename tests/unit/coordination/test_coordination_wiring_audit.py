"""The wiring that the audit judges is the wiring that runs."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest

import ringrift
from ringrift.capabilities import capability
from ringrift.coordination.coordination_bootstrap import bootstrap_coordination, shutdown_coordination
from ringrift.coordination.coordinator_config import get_settings
from ringrift.coordination.event_router import get_router
from ringrift.coordination.unified_health_manager import UnifiedHealthManager
from ringrift.coordination.wiring_audit import SENT_BY, audit_wiring, collect_wiring
from ringrift.events.catalog.audit import WiringState, audit
from ringrift.events.catalog.table import CATALOG, COMPONENTS

SOURCE = Path(ringrift.__file__).parent
SENDING = {"publish", "publish_sync", "put", "emit", "_emit", "tell", "_tell", "_publish"}


def sent_by_code():
    """Every event that a call in the source names as the thing to send, with where."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        if "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in SENDING and node.args:
                for leaf in ast.walk(node.args[0]):
                    if isinstance(leaf, ast.Constant) and leaf.value in CATALOG:
                        found.setdefault(leaf.value, set()).add(path.relative_to(SOURCE).as_posix())
    return found


def test_everything_that_the_code_sends_is_declared():
    declared = set(collect_wiring().emitters)
    undeclared = {event: where for event, where in sent_by_code().items() if event not in declared}
    assert undeclared == {}


def test_the_catalog_names_as_senders_who_really_sends():
    real = collect_wiring().emitters
    built = {
        name: {each for each in spec.emitted_by if capability(COMPONENTS[each]).built}
        for name, spec in CATALOG.items()
    }
    assert {name: (built[name], set(real[name])) for name in real if built[name] != set(real[name])} == {}


@pytest.mark.parametrize("component", ["bootstrap", "event_router", "worker"])
def test_everything_that_is_declared_here_is_in_the_code(component):
    homes = {
        "bootstrap": ("coordination/coordination_bootstrap.py", "coordination/initializer.py"),
        "event_router": ("events/**/*.py",),
        "worker": ("work/**/*.py",),
    }
    text = "\n".join(
        path.read_text(encoding="utf8")
        for pattern in homes[component]
        for path in SOURCE.glob(pattern)
        if path.name not in {"event_types.py", "payloads.py", "emitters.py"}
    )
    assert [event for event in SENT_BY[component].emits if f'"{event}"' not in text] == []


def test_the_health_manager_hears_in_the_audit_what_it_hears_when_the_system_is_up():
    wiring = collect_wiring()
    audited = {event for event, owners in wiring.subscriptions.items() if "health_manager" in owners}
    bootstrap_coordination()
    live = {
        event
        for item in get_router().list_subscribers()
        if item["name"].startswith("health_manager.")
        for event in item["event_types"]
    }
    assert audited == live == set(UnifiedHealthManager.subscribes)
    shutdown_coordination()


def test_the_audit_accepts_this_version_and_leaves_no_file():
    report = audit_wiring()
    assert report.failures == ()
    assert report.unmapped_high_impact == ()
    assert not get_settings().data_dir.exists() or not any(get_settings().data_dir.iterdir())


def test_nothing_is_sent_before_somebody_can_hear_it():
    """Only what is there to be read in the log needs no listener."""
    orphans = {entry.name: entry.reason for entry in audit_wiring().orphans}
    assert {name: why for name, why in orphans.items() if "internal" not in why} == {}


def test_a_subscription_that_is_forgotten_is_found(monkeypatch):
    less = tuple(event for event in UnifiedHealthManager.subscribes if event != "DLQ_EVENTS_PURGED")
    monkeypatch.setattr(UnifiedHealthManager, "subscribes", less)
    (failure,) = audit_wiring().failures
    assert failure.name == "DLQ_EVENTS_PURGED"
    assert "health_manager should hear it" in failure.reason


@pytest.mark.parametrize(
    "event",
    [
        "REGRESSION_DETECTED",
        "REGRESSION_CLEARED",
        "TRAINING_ROLLBACK_NEEDED",
        "DATA_FRESH",
        "DATA_STALE",
        "ORPHAN_GAMES_DETECTED",
        "REPLICATION_ALERT",
        "REPAIR_COMPLETED",
        "REPAIR_FAILED",
        "PLATEAU_DETECTED",
        "TRAINING_BLOCKED_BY_QUALITY",
        "PROMOTION_FAILED",
        "JOB_PREEMPTED",
    ],
)
def test_a_default_run_has_a_sender_of(event):
    (entry,) = [each for each in audit_wiring().events if each.name == event]
    assert entry.state is WiringState.CONNECTED, entry.reason


def test_a_sender_that_a_default_run_does_not_start_is_told_apart():
    wiring = collect_wiring()
    assert "model_performance_watchdog" not in wiring.elsewhere
    asleep = replace(wiring, elsewhere=wiring.elsewhere | {"model_performance_watchdog"})
    (entry,) = [each for each in audit(asleep).events if each.name == "REGRESSION_DETECTED"]
    assert (entry.state, entry.accepted) == (WiringState.OTHER_PROFILE, True)
    assert entry.reason.startswith("sent only where model_performance_watchdog runs")
