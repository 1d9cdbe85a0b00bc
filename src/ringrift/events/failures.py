"""How a delivery can fail."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ringrift.errors import described
from ringrift.events.routed_event import RouterEvent
from ringrift.events.subscriptions import Subscription

_PROGRAMMING_ERRORS = (NameError, AttributeError, TypeError)


class FailureKind(StrEnum):
    """How a delivery failed; the value is the source label of its dead letter."""

    RAISED = "EventRouter.async"
    RAISED_AT_ONCE = "EventRouter.sync"
    BUG = "EventRouter.programming_error"
    TIMEOUT = "EventRouter.async.timeout"
    CANCELLED = "EventRouter.cancelled"
    OVERFLOW = "EventRouter.overflow"
    UNACKNOWLEDGED = "CrossProcessEventQueue.unacknowledged"


@dataclass(frozen=True, slots=True)
class Failure:
    """One event that one subscription did not handle."""

    event: RouterEvent
    subscription: Subscription
    kind: FailureKind
    error: str
    cause: BaseException | None = None


def failure_of(
    event: RouterEvent, subscription: Subscription, error: BaseException, kind: FailureKind
) -> Failure:
    text = described(error)
    if isinstance(error, _PROGRAMMING_ERRORS):
        return Failure(event, subscription, FailureKind.BUG, f"BUG: {text}", error)
    return Failure(event, subscription, kind, text, error)


def overflow_of(event: RouterEvent, subscription: Subscription) -> Failure:
    waiting = len(subscription.mailbox)
    return Failure(event, subscription, FailureKind.OVERFLOW, f"mailbox full: {waiting} events wait")
