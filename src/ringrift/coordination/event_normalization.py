"""The validator of this process, for names of events in any spelling."""

from __future__ import annotations

from typing import Any

from ringrift.events.catalog.names import EventTypeValidator
from ringrift.process import getter_of, reset_of

__all__ = ["get_event_validator", "reset_event_validator", "validate_event_type"]


# This process's validator; strictness is read from the settings when it is made.
get_event_validator = getter_of("get_event_validator", EventTypeValidator)
reset_event_validator = reset_of("reset_event_validator", EventTypeValidator)


def validate_event_type(event_type: Any) -> tuple[bool, str]:
    """Say whether this is an event, with this process's validator."""
    return get_event_validator().validate(event_type)
