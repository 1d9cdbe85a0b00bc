"""What a share of points says: its interval, and the difference in strength that it stands for."""

from __future__ import annotations

from math import log10, sqrt

Z_95 = 1.959963984540054


def wilson_interval(share: float, count: int, *, z: float = Z_95) -> tuple[float, float]:
    """Wilson's interval for a share of *count* trials; (0, 1) for none."""
    if count == 0:
        return 0.0, 1.0
    centre = share + z * z / (2 * count)
    spread = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def elo_difference(score: float) -> float:
    """The strength difference at which *score* is the expected share; infinite for 0 and 1."""
    if not 0 < score < 1:
        return float("inf") if score >= 1 else float("-inf")
    return 400 * log10(score / (1 - score))
