"""Telling a file or folder from another one that was put in its place.

A path that is kept for long may lead elsewhere by now: somebody moved the folder, or copied another file over
it. What is open goes on to be written where nobody looks, and what goes by path lands among the things of
somebody else.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self


class HeldPath:
    """A path and the very file or folder that it led to."""

    def __init__(self, path: Path, found: os.stat_result) -> None:
        self.path = path
        self._identity = found.st_dev, found.st_ino

    @property
    def identity(self) -> str:
        """What tells it from any other of this machine."""
        return ":".join(map(str, self._identity))

    @classmethod
    def of(cls, path: Path) -> Self:
        return cls(path, path.stat())

    def problem(self) -> str:
        """What became of it; "" while the path leads to it. Costs one look at the file system."""
        try:
            found = os.stat(self.path)
        except (FileNotFoundError, NotADirectoryError):
            return f"{self.path} was moved or removed while it was in use"
        except OSError:
            return ""  # it cannot be looked at now, which says nothing about what is there
        if self.is_same(found):
            return ""
        return f"{self.path} was exchanged for another one while it was in use"

    def is_same(self, found: os.stat_result) -> bool:
        return (found.st_dev, found.st_ino) == self._identity
