"""For how long this process has had a GPU to itself or with others: what it costs, not how busy it was."""

from __future__ import annotations

from ringrift import clock
from ringrift.process import process_scope


class GpuUse:
    """Begins with the first network that goes to a GPU, and ends with the process that holds its memory."""

    def __init__(self) -> None:
        self.began_s: float | None = None  # by the clock that never goes back

    def begin(self) -> None:
        if self.began_s is None:
            self.began_s = clock.monotonic_s()

    def seconds(self) -> float:
        return 0.0 if self.began_s is None else clock.monotonic_s() - self.began_s


def gpu_use() -> GpuUse:
    """That of this process."""
    return process_scope().get(GpuUse, GpuUse)
