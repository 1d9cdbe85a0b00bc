"""The rules and words of the work queue that every adapter shares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, unquote

from ringrift.engine.ports import WorkState
from ringrift.errors import ConfigError, Conflict

ENDED = frozenset({WorkState.DONE, WorkState.DEAD, WorkState.CANCELLED})
HOLDS = "queue/hold/"  # keys under which it stands what is not handed out
WORK_LEASES = "lease/work/"  # keys of the leases under which others than workers do work of the queue
ALL_WORK = "*"
EMERGENCY_WORK = "*emergency"  # all of it, by the emergency stop, so that no end of a pause ends that
TASKS_WORK = "*tasks"  # all of it, by the task coordinator, whose pause ends no person's
_WHOLE = frozenset({ALL_WORK, EMERGENCY_WORK, TASKS_WORK})
LEASE_RAN_OUT = "the lease ran out"
PAYLOAD_DAMAGED = "its payload is not what was added: the database is damaged"
RESULT_DAMAGED = "its result is not what it was completed with: the database is damaged"


def hold_key(group: str) -> str:
    """The key whose entry, whatever its value, keeps the items of *group* (`ALL_WORK`: all) waiting."""
    return HOLDS + (group if is_whole(group) else quote(group, safe=""))


def is_whole(group: str) -> bool:
    """Whether that stands for the work of all groups."""
    return group in _WHOLE


def held_groups(keys: Iterable[str]) -> frozenset[str]:
    """The groups that the keys of live entries under `HOLDS` name."""
    return frozenset(unquote(key.removeprefix(HOLDS)) for key in keys)


def work_lease(group: str, kind: str) -> str:
    """The name of the lease whose holder does work of *kind* for *group* himself: no item is handed out."""
    return f"work/{quote(group, safe='')}:{quote(kind, safe='')}"


def changes_holds(key: str) -> bool:
    """Whether a change of *key* may let work be claimed."""
    return key.startswith((HOLDS, WORK_LEASES))


class HeldWork(NamedTuple):
    """What is not to be handed out."""

    groups: frozenset[str] = frozenset()
    kinds: frozenset[tuple[str, str]] = frozenset()  # of a group

    @classmethod
    def by(cls, keys: Iterable[str]) -> HeldWork:
        """What the *keys* of live entries under `HOLDS` and `WORK_LEASES` hold."""
        keys = list(keys)
        leases = (key.removeprefix(WORK_LEASES).partition(":") for key in keys if key.startswith(WORK_LEASES))
        return cls(
            held_groups(key for key in keys if key.startswith(HOLDS)),
            frozenset((unquote(group), unquote(kind)) for group, _, kind in leases),
        )

    def holds(self, group: str, kind: str) -> bool:
        if not _WHOLE.isdisjoint(self.groups):
            return True
        return group in self.groups or (group, kind) in self.kinds


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
