"""Files that somebody else names by their path: opened only inside folders that the settings name.

Whoever can publish an event can name any path, so a name must not become a read of any file of this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from ringrift.errors import ConfigError
from ringrift.foreign_files.paths import open_regular

VARIABLE = "RINGRIFT_INTAKE_FOLDERS"


@contextmanager
def open_offered(path: Path, folders: Sequence[Path]) -> Iterator[tuple[BinaryIO, Path]]:
    """Open the file at *path* if it really lies in one of *folders*; hand out the file and where it lies.

    All links are followed first, and nothing outside is opened: `ConfigError`. `Corrupt` for what is no plain
    file; `OSError` as `open`.
    """
    if not folders:
        raise ConfigError(f"{path} is not read: {VARIABLE} names no folder that files are taken from")
    if not path.is_absolute():
        raise ConfigError(f"{path} is not read: an event names a file by its full path")
    try:
        real = path.resolve(strict=True)
    except (RuntimeError, ValueError) as error:  # links in a circle, or no text that can be a path
        raise ConfigError(f"{str(path)!r} is not read: {error}") from None
    roots = [folder.resolve() for folder in folders]
    _check_inside(path, real, roots)
    with open_regular(real, follow=False) as file:
        # A folder on the way may have been exchanged for a link since: what counts is what is open.
        opened = Path(os.readlink(f"/proc/self/fd/{file.fileno()}"))
        _check_inside(path, opened, roots)
        yield file, opened


def _check_inside(path: Path, real: Path, roots: Sequence[Path]) -> None:
    if not any(real.is_relative_to(root) for root in roots):
        shown = ", ".join(map(str, roots))
        raise ConfigError(f"{path} is not read: it lies in none of the folders of {VARIABLE} ({shown})")
