"""What the exit code of a job means; whoever started the job branches on it."""

from __future__ import annotations

from enum import IntEnum

from ringrift.errors import Conflict, Corrupt, RingRiftError, Unavailable


class ExitCode(IntEnum):
    """Codes of `python -m ringrift.jobs`."""

    DONE = 0  # everything asked for is done and sealed
    CRASHED = 1  # a fault of the program; the traceback is on stderr
    WRONG_INPUT = 2  # parameters or paths that can never work
    STOPPED = 3  # asked to stop; what was done is sealed, the same command continues
    DATA_REFUSED = 4  # some data failed its check; the result says which and why
    UNAVAILABLE = 5  # no space, no right to write: may pass by itself

    @property
    def status(self) -> str:
        """The word for it in the result line."""
        return self.name.lower()


def exit_code_of(error: RingRiftError) -> ExitCode:
    if isinstance(error, Corrupt):
        return ExitCode.DATA_REFUSED
    if isinstance(error, Unavailable | Conflict):
        return ExitCode.UNAVAILABLE
    return ExitCode.WRONG_INPUT
