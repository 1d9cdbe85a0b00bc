"""Strict mode refuses with a reason; otherwise unknown names are counted and cost no search."""

import pytest

from ringrift.coordination.event_normalization import get_event_validator, validate_event_type
from ringrift.errors import ConfigError, PayloadError, UnknownEventTypeError
from ringrift.events.catalog.names import (
    EventTypeValidator,
    UnknownEvents,
    difflib,
)
from ringrift.events.catalog.table import CATALOG


def test_messages():
    validator = EventTypeValidator(strict=False)
    assert validator.validate("TRAINING_COMPLETED") == (True, "Valid canonical event type TRAINING_COMPLETED")
    ok, message = validator.validate("training_complete")
    assert ok
    assert "Normalized" in message
    ok, message = validator.validate("TRAINING_COMPLETD")
    assert not ok
    assert "Unknown" in message
    assert "TRAINING_COMPLETED" in message


def test_strict_refuses_an_unknown_name_and_says_what_was_meant():
    with pytest.raises(UnknownEventTypeError, match="Did you mean") as caught:
        EventTypeValidator(strict=True).validate("TRAINING_COMPLETD")
    assert caught.value.event_type == "TRAINING_COMPLETD"
    assert "TRAINING_COMPLETED" in caught.value.suggestions
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ConfigError)


def test_strict_refuses_a_wrong_payload_by_event_and_field():
    spec = CATALOG["MODEL_PROMOTED"]
    payload = {"config_key": "hex8_2p", "model_id": 7, "model_path": "m"}
    assert EventTypeValidator(strict=False).check_payload(spec, payload)
    with pytest.raises(PayloadError, match=r"MODEL_PROMOTED: elo is missing \(float expected\)") as caught:
        EventTypeValidator(strict=True).check_payload(spec, payload)
    assert "model_id is 7 of type int (str expected)" in caught.value.problems


def test_is_valid_never_raises_nor_counts():
    validator = EventTypeValidator(strict=True)
    assert validator.is_valid("new_games")
    assert not validator.is_valid("no_such_event")
    assert EventTypeValidator.get_unknown_events() == {}


def test_unknown_names_are_counted_for_the_process():
    for _ in range(3):
        EventTypeValidator(strict=False).validate("odd_event")
    assert EventTypeValidator.get_unknown_events() == {"odd_event": 3}
    EventTypeValidator.reset_unknown_events()
    assert EventTypeValidator.get_unknown_events() == {}


def test_a_repeated_unknown_name_is_searched_for_once(monkeypatch):
    searches = []
    real = difflib.get_close_matches
    monkeypatch.setattr(difflib, "get_close_matches", lambda *a, **k: searches.append(a) or real(*a, **k))
    for _ in range(100):
        validate_event_type("TRAINING_COMPLETD")
    assert len(searches) == 1


def test_a_flood_of_unknown_names_is_bounded():
    unknown = UnknownEvents(names_max=3)
    assert [unknown.note(name) for name in "aabcde"] == [True, False, True, True, False, False]
    assert unknown.counts() == {"a": 2, "b": 1, "c": 1, UnknownEvents.OTHERS: 2}
    for name in "abcd":
        unknown.suggestions(name)
    assert unknown.suggestions("TRAINING_COMPLETD") == ()


def test_strictness_comes_from_the_settings(monkeypatch):
    monkeypatch.setenv("RINGRIFT_EVENT_VALIDATION_STRICT", "true")
    assert get_event_validator().strict
    assert get_event_validator() is get_event_validator()
