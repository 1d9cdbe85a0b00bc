"""Cholesky factors of a symmetric matrix that is mostly empty to the left of its diagonal.

Each row is kept from its first entry to the diagonal, and the factor fills nothing outside of that. Who
played whom is such a matrix when the players stand in order of time: a row of a hundred players has a
handful of entries, and the factor costs next to nothing. A full matrix costs what it costs anyway.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from operator import mul


class Skyline:
    """A symmetric positive definite matrix; `factor` turns it into its lower Cholesky factor, in place."""

    def __init__(self, size: int, linked: Iterable[tuple[int, int]]) -> None:
        """Make room for the entries (row, column) in *linked* and for the diagonal."""
        starts = list(range(size))
        for one, other in linked:
            row, column = max(one, other), min(one, other)
            starts[row] = min(starts[row], column)
        self.starts = starts
        self.rows = [[0.0] * (row - start + 1) for row, start in enumerate(starts)]

    def clear(self) -> None:
        for row in self.rows:
            row[:] = [0.0] * len(row)

    def add(self, one: int, other: int, value: float) -> None:
        row, column = (one, other) if one >= other else (other, one)
        self.rows[row][column - self.starts[row]] += value

    def factor(self) -> None:
        """Raises `ValueError` where the matrix is not positive definite."""
        rows, starts = self.rows, self.starts
        for i, row in enumerate(rows):
            start = starts[i]
            for j in range(start, i):
                other, other_start = rows[j], starts[j]
                first = max(start, other_start)
                done = _dot(row[first - start : j - start], other[first - other_start : -1])
                row[j - start] = (row[j - start] - done) / other[-1]
            rest = row[-1] - _dot(row[:-1], row[:-1])
            if rest <= 0:
                raise ValueError(f"not positive definite at row {i}")
            row[-1] = sqrt(rest)

    def forward(self, right: list[float], *, first: int = 0) -> list[float]:
        """Solve `L y = right`, whose entries before *first* are zero."""
        solved = [0.0] * len(right)
        for i in range(first, len(right)):
            row, start = self.rows[i], self.starts[i]
            begin = max(start, first)
            solved[i] = (right[i] - _dot(row[begin - start : -1], solved[begin:i])) / row[-1]
        return solved

    def solve(self, right: list[float]) -> list[float]:
        """Solve `L Lᵀ x = right`."""
        solved = self.forward(right)
        for i in range(len(solved) - 1, -1, -1):
            row, start = self.rows[i], self.starts[i]
            solved[i] /= row[-1]
            value = solved[i]
            for column in range(start, i):
                solved[column] -= row[column - start] * value
        return solved

    def inverse_diagonal(self) -> list[float]:
        """The diagonal of the inverse of the factored matrix."""
        size = len(self.rows)
        found = []
        for i in range(size):
            unit = [0.0] * size
            unit[i] = 1.0
            column = self.forward(unit, first=i)[i:]
            found.append(_dot(column, column))
        return found


def _dot(one: list[float], other: list[float]) -> float:
    return sum(map(mul, one, other), 0.0)
