"""Whether values mean what they say: of positions called 0.6, how did the games end on average?"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

BINS = 10

Values = npt.NDArray[np.float32]


class ValueCalibration:
    """Sums what was said and what was wanted, by what was said; values lie in [-1, 1]."""

    def __init__(self) -> None:
        self._rows = np.zeros(BINS, dtype=np.int64)
        self._said, self._wanted = np.zeros(BINS), np.zeros(BINS)

    def add(self, said: Values, wanted: Values) -> None:
        bins = np.clip(((said + 1) / 2 * BINS).astype(np.int64), 0, BINS - 1)
        self._rows += np.bincount(bins, minlength=BINS)
        self._said += np.bincount(bins, weights=said, minlength=BINS)
        self._wanted += np.bincount(bins, weights=wanted, minlength=BINS)

    def as_json(self) -> dict[str, Any] | None:
        """The mean distance of said from wanted, and every bin that has rows; None if nothing was added."""
        used = np.flatnonzero(self._rows)
        if not used.size:
            return None
        rows = self._rows[used]
        said, wanted = self._said[used] / rows, self._wanted[used] / rows
        bins = zip(rows.tolist(), said.round(4).tolist(), wanted.round(4).tolist(), strict=True)
        return {
            "error": round(float(np.average(np.abs(said - wanted), weights=rows)), 4),
            "bias": round(float(np.average(said - wanted, weights=rows)), 4),
            "bins": [{"rows": count, "said": mean, "was": result} for count, mean, result in bins],
        }
