"""Every event and every alias that the RingRift documents and their users know leads to one event."""

import csv
from pathlib import Path

import pytest

from ringrift.coordination.event_mappings import StageEvent
from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.names import normalize_event_type, resolve_alias
from ringrift.events.catalog.table import CATALOG

DATA = Path(__file__).parents[1] / "data"
EVENTS = list(csv.DictReader((DATA / "documented_events.csv").read_text().splitlines()))
ALIASES = list(csv.DictReader((DATA / "documented_event_aliases.csv").read_text().splitlines()))

# Under their old names these two were mistaken for a verdict and for a promotion.
TOLD_APART = {
    "SHADOW_TOURNAMENT_COMPLETE": "TOURNAMENT_COMPLETED",
    "TIER_GATING_COMPLETE": "TIER_PROMOTION",
}
WIRE_VALUES = {
    "NEW_GAMES_AVAILABLE": "new_games",
    "DATA_SYNC_STARTED": "sync_started",
    "DATA_SYNC_COMPLETED": "sync_completed",
    "DATA_SYNC_FAILED": "sync_failed",
    "TRAINING_THRESHOLD_REACHED": "training_threshold",
}


def test_the_lists_are_whole():
    assert (len(EVENTS), len(ALIASES)) == (214, 63)


@pytest.mark.parametrize("row", EVENTS, ids=lambda row: row["name"])
def test_documented_event_is_in_the_catalog(row):
    spec = CATALOG[row["name"]]
    assert (spec.category, spec.severity) == (row["category"], row["severity"])
    assert spec.crosses == (row["crosses"] == "yes")
    assert spec.value == WIRE_VALUES.get(row["name"], row["name"].lower())
    assert DataEventType[row["name"]] is DataEventType(spec.value)


@pytest.mark.parametrize("row", ALIASES, ids=lambda row: row["alias"])
def test_alias_leads_to_its_event(row):
    expected = TOLD_APART.get(row["alias"], row["canonical"])
    for spelling in (row["alias"], row["alias"].lower(), row["alias"].title()):
        assert normalize_event_type(spelling) == expected
        assert resolve_alias(spelling, {})[0] == expected


@pytest.mark.parametrize("stage", StageEvent)
def test_every_stage_has_an_event(stage):
    assert normalize_event_type(stage) in CATALOG
    assert normalize_event_type(stage) == normalize_event_type(stage.name)


@pytest.mark.parametrize(
    ("alias", "payload", "event", "delivered"),
    [
        ("PROMOTION_COMPLETE", {"success": True}, "MODEL_PROMOTED", {"success": True}),
        ("PROMOTION_COMPLETE", {"success": False}, "PROMOTION_FAILED", {"success": False}),
        ("promotion_completed", {"promoted": False}, "PROMOTION_FAILED", {"promoted": False}),
        (StageEvent.PROMOTION_COMPLETE, {"success": False}, "PROMOTION_FAILED", {"success": False}),
        ("TIER_GATING_COMPLETE", {"passed": False}, "PROMOTION_REJECTED", {"passed": False}),
        ("CLUSTER_SYNC_COMPLETE", {}, "DATA_SYNC_COMPLETED", {"sync_type": "cluster"}),
        ("Cluster_Sync_Completed", {}, "DATA_SYNC_COMPLETED", {"sync_type": "cluster"}),
        ("CLUSTER_SYNC_COMPLETE", {"sync_type": "push"}, "DATA_SYNC_COMPLETED", {"sync_type": "push"}),
        (StageEvent.GPU_SELFPLAY_COMPLETE, {}, "SELFPLAY_COMPLETE", {"selfplay_type": "gpu"}),
        ("CANONICAL_SELFPLAY_COMPLETE", {}, "SELFPLAY_COMPLETE", {"selfplay_type": "canonical"}),
        ("SHADOW_TOURNAMENT_COMPLETE", {}, "TOURNAMENT_COMPLETED", {"evaluation_type": "shadow"}),
        ("PBT_COMPLETE", {}, "PBT_COMPLETED", {}),
        ("PBT_COMPLETED", {}, "PBT_COMPLETED", {}),
    ],
)
def test_alias_keeps_what_it_says_beyond_its_name(alias, payload, event, delivered):
    assert resolve_alias(alias, payload) == (event, delivered)


def test_a_plain_name_leaves_the_payload_alone():
    payload = {"config_key": "hex8_2p"}
    assert resolve_alias("TRAINING_COMPLETE", payload)[1] is payload
