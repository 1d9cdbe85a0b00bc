"""How long to wait after failures in a row: longer after each, and never longer than a limit."""

from __future__ import annotations

# Enough for every wait to reach its limit, and few enough for no number to overflow: a count of failures may
# have been written by another program.
_STEPS_MAX = 500


def back_off_s(failures: int, *, first_s: float, longest_s: float, growth: float = 2.0) -> float:
    """Return the wait after so many failures in a row: *first_s*, and *growth* times as long each time.

    Whoever must not come back in the same moment as others spreads it with the `Runtime`'s randomness.
    """
    steps = min(max(failures - 1, 0), _STEPS_MAX)
    return min(first_s * growth**steps, longest_s)
