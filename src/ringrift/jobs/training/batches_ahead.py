"""Batches made by other threads while the network computes: a GPU is done before the next one is made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from ringrift.jobs.training.rows import TrainingBatch

LOADERS_MAX = 16


class BatchesAhead:
    """Batches by the number of their step, some of them made before they are asked for."""

    def __init__(self, make: Callable[[int], TrainingBatch], *, last: int, ahead: int) -> None:
        self._make, self._last, self._ahead = make, last, ahead
        self._pool = ThreadPoolExecutor(min(ahead, LOADERS_MAX), "batches") if ahead else None
        self._coming: dict[int, Future[TrainingBatch]] = {}

    def at(self, step: int) -> TrainingBatch:
        if self._pool is None:
            return self._make(step)
        for number in range(step, min(step + self._ahead + 1, self._last)):
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._make, number)
        return self._coming.pop(step).result()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
