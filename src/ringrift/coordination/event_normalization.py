"""The validator of this process, for names of events in any spelling."""

from __future__ import annotations

from typing import Any

from ringrift.events.catalog.names import EventTypeValidator
from ringrift.process import process_scope, reset_of

__all__ = ["get_event_validator", "reset_event_validator", "validate_event_type"]


def get_event_validator() -> EventTypeValidator:
    """Return this process's validator; strictness is read from the settings when it is made."""
    return process_scope().get(EventTypeValidator, EventTypeValidator)


reset_event_validator = reset_of(EventTypeValidator)


def validate_event_type(event_type: Any) -> tuple[bool, str]:
    """Say whether this is an event, with this process's validator."""
    return get_event_validator().validate(event_type)
