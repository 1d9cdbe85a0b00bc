"""What was handled since the last recorded position, in a file that survives `kill -9`.

A position is recorded a moment after its handler ends. In between, the note is all that keeps a killed
process from handling the event again; writing it is one write into the page cache, done before anything
else can happen. Two files take turns, so that one can be emptied once the positions behind it are
recorded. A power cut may lose notes; the events are then handled again, never lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import structlog

from ringrift.errors import Unavailable
from ringrift.held_folder import make_folders, open_file

log = structlog.get_logger()


class Note(NamedTuple):
    """One handled event of one subscription."""

    seq: int
    event_id: str
    subscription: str


class DeliveryNotes:
    """Owned by one process at a time; the instance's lock sees to that."""

    def __init__(self, folder: Path, instance: str) -> None:
        self._paths = [folder / f"{instance}.notes.{side}" for side in ("a", "b")]
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            make_folders(folder)
            self._files = [open_file(path, flags, 0o600) for path in self._paths]
        except OSError as error:
            raise Unavailable(f"{folder}: delivery notes cannot be kept: {error.strerror}") from error
        self._side = 0
        self._failing = False

    def read(self) -> Iterator[Note]:
        """Yield what an earlier run left; a line cut off by a crash is not a note."""
        for path in self._paths:
            for line in path.read_bytes().split(b"\n")[:-1]:
                parts = line.decode("utf-8", "replace").split(" ", 2)
                if len(parts) == 3 and parts[0].isdigit():
                    yield Note(int(parts[0]), parts[1], parts[2])

    def write(self, note: Note) -> None:
        """Write one note. Without room for it the event may be handled again after a crash, no more."""
        line = f"{note.seq} {note.event_id} {note.subscription}\n".encode()
        try:
            os.write(self._files[self._side], line)
        except OSError as error:
            self._tell(error)
        else:
            self._failing = False

    def turn(self) -> int:
        """Write to the other file from now on; return the side that positions taken now will cover."""
        covered = self._side
        self._side = 1 - covered
        return covered

    def empty(self, side: int) -> None:
        try:
            os.ftruncate(self._files[side], 0)
        except OSError as error:
            self._tell(error)  # notes that stay repeat what the positions say

    def _tell(self, error: OSError) -> None:
        if not self._failing:
            self._failing = True
            log.error("events.notes_not_kept", path=str(self._paths[0]), error=error.strerror)

    def close(self) -> None:
        for file in self._files:
            os.close(file)
        self._files = []
