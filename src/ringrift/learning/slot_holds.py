"""A training slot that somebody holds, as the plan sees it: the loop orders no training of the config.

Who holds it is noted among the facts of the config (`TRAINING_SLOT_TOPIC`) before anything is planned, so
that a decision is made again with the slot as it was. Without a note nobody holds it.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from ringrift.decoding import convert_to
from ringrift.errors import Corrupt
from ringrift.learning.facts import TRAINING_SLOT_TOPIC, Noted
from ringrift.learning.state import STUDENTS, ConfigState

TRAININGS = ("train", *STUDENTS)  # the stages whose jobs the slot stands for


class SlotHold(msgspec.Struct, frozen=True, kw_only=True):
    """Who trains the config with a program of his own, and since when."""

    holder: str
    since_s: float | None = None  # None: it was not told
    job_id: str = ""  # empty while he waits for the end of a training that a worker has

    @property
    def reason(self) -> str:
        what = f"{self.holder} holds the training slot{f' for {self.job_id}' if self.job_id else ''}"
        if self.since_s is None:
            return what
        return f"{what} (since {datetime.fromtimestamp(self.since_s, UTC):%Y-%m-%d %H:%M:%S} UTC)"


def slot_of(state: ConfigState) -> SlotHold | None:
    """Who holds the training slot of this config now; None if nobody does."""
    note = state.newest_note(TRAINING_SLOT_TOPIC)
    if note is None:
        return None
    try:
        return convert_to(note.details["held"], SlotHold | None)
    except (KeyError, msgspec.ValidationError) as error:
        raise Corrupt(
            f"the training slot noted at {note.at_s:.0f}",
            found=str(error),
            advice="Use the version that wrote it",
        ) from None


def slot_note(state: ConfigState, hold: SlotHold | None, *, at_s: float) -> Noted | None:
    """What to note when *hold* is as it is; None if that is what was noted last.

    A holder who has not told since when has held it since it was first noted.
    """
    before = slot_of(state)
    if hold is not None and hold.since_s is None:
        since_s = before.since_s if before is not None and before.holder == hold.holder else at_s
        hold = msgspec.structs.replace(hold, since_s=since_s)
    if hold == before:
        return None
    text = "the training slot is free again" if hold is None else hold.reason
    details = {"held": msgspec.to_builtins(hold)}
    return Noted(at_s=at_s, topic=TRAINING_SLOT_TOPIC, text=text, details=details)
