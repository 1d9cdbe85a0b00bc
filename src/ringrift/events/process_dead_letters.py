"""The dead letters of this process, opened when the first one is written or asked for."""

from __future__ import annotations

from pathlib import Path

from ringrift.events.dead_letter_queue import DeadLetterQueue
from ringrift.events.failures import Failure


def get_dead_letter_queue(db_path: Path | str | None = None) -> DeadLetterQueue:
    """Return the queue of this process; another *db_path* than it was opened with is a `ConfigError`."""
    if db_path is None:
        return DeadLetterQueue.get_instance()
    return DeadLetterQueue.get_instance(Path(db_path))


reset_dead_letter_queue = DeadLetterQueue.reset_instance


class ProcessDeadLetters:
    """Hands failures to the queue of this process, which is opened by the first of them."""

    def capture_failure(self, failure: Failure, *, instance: str) -> str:
        return get_dead_letter_queue().capture_failure(failure, instance=instance)
