"""The rules and words of the work queue that every adapter shares."""

from __future__ import annotations

from ringrift.engine.limits import KEY_CHARS_MAX
from ringrift.engine.ports import NewWork, WorkState
from ringrift.errors import ConfigError, Conflict

ENDED = frozenset({WorkState.DONE, WorkState.DEAD, WorkState.CANCELLED})
LEASE_RAN_OUT = "the lease ran out"
PAYLOAD_DAMAGED = "its payload is not what was added: the database is damaged"
RESULT_DAMAGED = "its result is not what it was completed with: the database is damaged"


def check_new_work(new: NewWork) -> None:
    """Refuse an item that no adapter could hand out."""
    for what, text in (("kind", new.kind), ("id", new.id), ("idempotency key", new.idempotency_key)):
        if text is not None and not 0 < len(text) <= KEY_CHARS_MAX:
            raise ConfigError(f"{what} {text[:80]!r} must have 1 to {KEY_CHARS_MAX} characters")
    if new.attempts_max < 1:
        raise ConfigError(f"attempts_max is {new.attempts_max}; it must be at least 1")
    if not new.delay_s >= 0:
        raise ConfigError(f"delay_s is {new.delay_s}; it must not be negative")
    if not -(2**31) <= new.priority < 2**31:
        raise ConfigError(f"priority is {new.priority}; it must fit in 32 bits")


def lost_because(token: int, found: tuple[WorkState, int] | None) -> str:
    """Say why a claim under *token* holds no longer; *found* is the item's state and token."""
    if found is None:
        return "there is no such item"
    state, current = found
    if current != token:
        return f"it was claimed again under token {current}"
    if state is WorkState.CLAIMED:
        return LEASE_RAN_OUT
    return f"the item is {state.value}"


def why_dependents_die(needed: str, state: WorkState) -> str:
    return f"{needed} that it needs is {state.value}"


def unknown_dependency(item_id: str, needed: str) -> ConfigError:
    return ConfigError(f"{item_id} needs {needed}, which is neither stored nor earlier in this call")


def no_such_item(item_id: str) -> ConfigError:
    return ConfigError(f"there is no work item {item_id!r}")


def not_dead(item_id: str, state: WorkState) -> Conflict:
    return Conflict(f"{item_id} is {state.value}; only a dead item can be revived")


def still_needs_dead(item_id: str, needed: str, state: WorkState) -> Conflict:
    return Conflict(f"{item_id} cannot be revived: {why_dependents_die(needed, state)}")
