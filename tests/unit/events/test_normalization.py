"""Any spelling of an event is that event; anything else passes through unchanged."""

import enum
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringrift.events.catalog.event_types import DataEventType
from ringrift.events.catalog.names import (
    CANONICAL_EVENT_NAMES,
    CANONICAL_EVENT_TYPES,
    EVENT_NAMING_GUIDELINES,
    audit_event_usage,
    delivered_as,
    get_variants,
    is_canonical,
    normalize_event_type,
    resolve,
    validate_event_names,
)
from ringrift.events.catalog.table import ALIASES, CATALOG

SPELLINGS = (
    [(name, name) for name in CATALOG]
    + [(spec.value, spec.name) for spec in CATALOG.values()]
    + [(alias.alias, alias.canonical) for alias in ALIASES.values()]
)


@given(st.sampled_from(SPELLINGS), st.data())
def test_any_case_of_any_spelling_is_the_same_event(spelling, data):
    text, expected = spelling
    upper = data.draw(st.lists(st.booleans(), min_size=len(text), max_size=len(text)))
    mixed = "".join(c.upper() if up else c.lower() for c, up in zip(text, upper, strict=True))
    name, spec = resolve(mixed)
    assert name == expected
    assert spec is CATALOG[expected]
    assert normalize_event_type(name) == name


@given(st.text())
def test_normalizing_twice_changes_nothing(text):
    once = normalize_event_type(text)
    assert normalize_event_type(once) == once


def test_enum_and_name_are_one_event():
    for member in DataEventType:
        assert normalize_event_type(member) == member.name == normalize_event_type(member.name)


@pytest.mark.parametrize("name", ["test_event", "custom_event_type", "MY_EVENT", "Mixed_Case", "", "func"])
def test_unknown_names_pass_unchanged(name):
    assert resolve(name) == (name, None)


def test_foreign_enums_and_objects_with_a_value():
    class Foreign(enum.Enum):
        TRAINING_COMPLETED = enum.auto()
        SYNC = "sync_completed"
        STRANGE = "strange"

    assert normalize_event_type(Foreign.TRAINING_COMPLETED) == "TRAINING_COMPLETED"
    assert normalize_event_type(Foreign.SYNC) == "DATA_SYNC_COMPLETED"
    assert normalize_event_type(Foreign.STRANGE) == "strange"
    assert normalize_event_type(types.SimpleNamespace(value="new_games")) == "NEW_GAMES_AVAILABLE"


def test_canonical_and_variants():
    assert is_canonical("SELFPLAY_COMPLETE")
    assert not is_canonical("SELFPLAY_COMPLETED")
    assert not is_canonical("training_completed")
    assert {"SYNC_COMPLETE", "sync_completed", "DATA_SYNC_COMPLETED"} <= set(
        get_variants("DATA_SYNC_COMPLETED")
    )
    assert get_variants("NO_SUCH_EVENT") == []
    assert validate_event_names() == []


def test_tables_have_identity_rows_and_both_cases():
    assert all(CANONICAL_EVENT_NAMES[name] == name == CANONICAL_EVENT_NAMES[name.lower()] for name in CATALOG)
    assert {"NEW_GAMES_AVAILABLE", "new_games"} <= CANONICAL_EVENT_TYPES
    assert "_COMPLETED" in EVENT_NAMING_GUIDELINES


def test_a_promotion_that_may_fail_arrives_under_two_names():
    assert delivered_as("PROMOTION_COMPLETE") == ("MODEL_PROMOTED", "PROMOTION_FAILED")
    assert delivered_as("TRAINING_COMPLETE") == ("TRAINING_COMPLETED",)


def test_usage_report():
    report = audit_event_usage(["TRAINING_COMPLETE", "TRAINING_COMPLETED", "training_completed", "odd"])
    assert report["total_events"] == 4
    assert report["unique_event_types"] == 4
    assert report["canonical_types"] == ["TRAINING_COMPLETED"]
    assert report["non_canonical_count"] == 2
    assert report["normalization_rate"] == 0.5
    assert report["usage_by_canonical"] == {"TRAINING_COMPLETED": 3, "odd": 1}
    assert "use TRAINING_COMPLETED instead of TRAINING_COMPLETE" in report["recommendations"]
    assert audit_event_usage([])["normalization_rate"] == 0.0
