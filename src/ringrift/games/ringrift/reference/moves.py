"""A move, and the text that records use for it."""

from __future__ import annotations

from dataclasses import dataclass

from ringrift.games.ringrift.boards import Board


@dataclass(frozen=True, slots=True)
class Move:
    """One decision. *kind* is the first word of its text, *tag* what the cells do not say.

    P cell count · M from>to · C from>over>to · L full|min cells · T cells · E cell · F cell ·
    R line|fallback|stack_strike from>to · SP, SC, SR, ST (skip placement, capture, recovery, territory)
    """

    kind: str
    cells: tuple[int, ...] = ()
    tag: str = ""

    def text(self, board: Board) -> str:
        names = [board.names[cell] for cell in self.cells]
        match self.kind:
            case "P":
                return f"P {names[0]} {self.tag}"
            case "M" | "C":
                return f"{self.kind} {'>'.join(names)}"
            case "R":
                return f"R {self.tag} {'>'.join(names)}"
            case "L":
                return f"L {self.tag} {'|'.join(sorted(names))}"
            case "T":
                return f"T {'|'.join(sorted(names))}"
            case "E" | "F":
                return f"{self.kind} {names[0]}"
        return self.kind
