"""Every event of the catalog has a scenario, or stands here with the reason why it has none."""

import ast
from itertools import chain

from recording import declared, published_by, scenario_files

from ringrift.capabilities import capability
from ringrift.events.catalog.table import CATALOG, COMPONENTS

LATER_MAX = 40

# Events whose cause comes with a part that is not built.
LATER = {
    "BUDGET_ALERT": "cluster",
    "BUDGET_EXCEEDED": "cluster",
    "CACHE_INVALIDATED": "capacity",
    "CAPACITY_LOW": "cluster",
    "CAPACITY_RESTORED": "cluster",
    "CLUSTER_CAPACITY_CHANGED": "cluster",
    "CLUSTER_STALL_DETECTED": "cluster",
    "CLUSTER_STATUS_CHANGED": "cluster",
    "DEADLOCK_DETECTED": "cluster",
    "EPOCH_ADVANCED": "cluster",
    "HEALTH_CHECK_FAILED": "cluster",
    "HEALTH_CHECK_PASSED": "cluster",
    "HOST_ONLINE": "cluster",
    "IDLE_RESOURCE_DETECTED": "capacity",
    "IDLE_STATE_BROADCAST": "capacity",
    "IDLE_STATE_REQUEST": "capacity",
    "LEADER_HEARTBEAT_MISSING": "cluster",
    "LEADER_STEPDOWN": "cluster",
    "MEMORY_PRESSURE": "capacity",
    "NETWORK_ISOLATION_DETECTED": "cluster",
    "NODE_ACTIVATED": "capacity",
    "NODE_CAPACITY_UPDATED": "cluster",
    "NODE_PROVISIONED": "cluster",
    "NODE_PROVISION_FAILED": "cluster",
    "NODE_RECOVERED": "cluster",
    "NODE_RETIRED": "cluster",
    "NODE_SUSPECT": "cluster",
    "NODE_TERMINATED": "cluster",
    "NODE_UNHEALTHY": "cluster",
    "P2P_CLUSTER_HEALTHY": "cluster",
    "P2P_CLUSTER_UNHEALTHY": "cluster",
    "P2P_HEALTH_RECOVERED": "cluster",
    "P2P_MODEL_SYNCED": "cluster",
    "P2P_NODES_DEAD": "cluster",
    "P2P_NODE_DEAD": "cluster",
    "P2P_RESTART_TRIGGERED": "cluster",
    "RESOURCE_CONSTRAINT_DETECTED": "capacity",
    "SPLIT_BRAIN_DETECTED": "cluster",
    "SPLIT_BRAIN_RESOLVED": "cluster",
    "STATE_PERSISTED": "cluster",
}

# Events that only users send: requests to the machine.
BY_USERS = {}

# Still without a scenario; these lists only shrink.
MISSING_LEARNING = {
    "MODEL_EVALUATION_BLOCKED",
    "PROMOTION_ROLLED_BACK",
    "REGRESSION_CLEARED",
    "REGRESSION_CRITICAL",
    "REGRESSION_DETECTED",
    "REGRESSION_MINOR",
    "REGRESSION_MODERATE",
    "REGRESSION_SEVERE",
    "TRAINING_ROLLBACK_NEEDED",
}
MISSING = MISSING_LEARNING


def not_built(components):
    """The parts that are to bring these components; empty where one of them is built."""
    parts = {"the cluster": "cluster", "the resources": "capacity"}
    reasons = [capability(COMPONENTS[name]).reason for name in components if name != "operator"]
    return {part for text, part in parts.items() for reason in reasons if all(reasons) and text in reason}


def trees():
    return {path.name: ast.parse(path.read_text(encoding="utf8")) for path in scenario_files()}


def test_every_event_has_a_scenario_or_a_reason():
    proven = set(
        chain.from_iterable(chain.from_iterable(declared(each).values() for each in trees().values()))
    )
    excused = [*LATER, *BY_USERS, *MISSING]
    assert sorted(set(excused) & proven) == [], "proven, so take it off the lists"
    assert sorted(CATALOG.keys() - proven - set(excused)) == []
    assert len(excused) == len(set(excused)), "each stands on one list"
    assert set(excused) <= CATALOG.keys()


def test_what_comes_later_is_really_not_built():
    assert len(LATER) <= LATER_MAX
    for event, part in LATER.items():
        spec = CATALOG[event]
        sides = [not_built(side) for side in (spec.emitted_by, spec.consumed_by) if side]
        assert part in chain(*sides), f"the {part} brings neither a sender nor a receiver of {event}"


def test_no_scenario_sends_the_event_that_it_is_about():
    found = []
    for name, tree in trees().items():
        events = declared(tree)
        inside = {
            number: events[node.name]
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in events
            for number in range(node.lineno, node.end_lineno + 1)
        }
        of_file = set(chain.from_iterable(events.values()))
        found += [
            f"{name}:{line}: sends {event} itself"
            for line, event in published_by(tree)
            if event in inside.get(line, of_file)
        ]
    assert found == []
