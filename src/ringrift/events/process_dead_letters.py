"""The dead letters of this process, opened when the first one is written or asked for."""

from __future__ import annotations

from pathlib import Path

from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.events.failures import Failure
from ringrift.process import process_scope


def get_dead_letter_queue(db_path: Path | str | None = None) -> DeadLetterQueue:
    """Return the queue of this process; *db_path* counts only for the call that opens it."""
    return process_scope().get(DeadLetterQueue, lambda: DeadLetterQueue(db_path))


class ProcessDeadLetters:
    """Hands failures to the queue of this process, which is opened by the first of them."""

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        return get_dead_letter_queue().capture_failure(failure, instance=instance)
