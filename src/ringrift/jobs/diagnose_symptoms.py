"""What an examination says, in the form that the doctor of a run passes on."""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one check; `fine` if nothing is wrong."""

    check: str
    level: Literal["fine", "notice", "warning", "problem"]
    text: str
    advice: str = ""
    config: str = ""
    evidence: dict[str, Any] = {}
