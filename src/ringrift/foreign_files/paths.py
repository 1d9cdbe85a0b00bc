"""Names and files from outside: what a name may hold, and reading a file that may be no file at all."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from ringrift.errors import ConfigError, Corrupt

_CHUNK_BYTES = 1 << 20
NAME_BYTES_MAX = 200  # leaves room for what is put before and behind it in a file's name


def name_problem(name: str) -> str:
    """Say why *name* cannot name a file, node or config; empty if it can.

    A name ends up in paths, in command lines and on terminals: none of them may take it for something else.
    """
    if not name:
        return "it is empty"
    if name.startswith("-"):
        return "it begins with '-', which programs take for an option"
    if name in (".", "..") or "/" in name or "\\" in name:
        return "it leads to another folder"
    if not name.isprintable():
        return "it holds characters that cannot be printed"
    if len(os.fsencode(name)) > NAME_BYTES_MAX:
        return f"it is longer than {NAME_BYTES_MAX} bytes"
    return ""


def check_name(what: str, name: str) -> None:
    """Raise `ConfigError` unless *name* can name a file, node or config."""
    if problem := name_problem(name):
        raise ConfigError(f"{what} {name[:80]!r} cannot be used: {problem}")


# Config keys: `{board}_{n}p`, parsed strictly.
#
# A key names a board and a number of players and nothing else. There is no default board and no default
# player count: a wrong key is an error that says what would be right.


PLAYERS_MIN, PLAYERS_MAX = 2, 4
_KEY = re.compile(r"(?P<board>[a-z][a-z0-9_]*)_(?P<players>[0-9]+)p")


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A board and a number of players."""

    board: str
    players: int

    def __str__(self) -> str:
        return f"{self.board}_{self.players}p"


def parse_config_key(text: str) -> ConfigKey:
    """Split *text* into board and players; raises `ConfigError` for anything but `{board}_{n}p`."""
    found = _KEY.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r} is no config key: expected {{board}}_{{n}}p, such as square8_2p")
    digits = found["players"]
    if digits not in map(str, range(PLAYERS_MIN, PLAYERS_MAX + 1)):
        raise ConfigError(f"{text!r}: players must be {PLAYERS_MIN} to {PLAYERS_MAX}, not {digits[:20]}")
    return ConfigKey(board=found["board"], players=int(digits))


def is_plain_file(path: Path) -> bool:
    """Whether *path* is a file itself: no link, and no pipe that nobody writes to."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def open_regular(path: Path, *, follow: bool = True) -> BufferedReader:
    """Open a file to read. What is no plain file is refused with `Corrupt` at once, even a pipe.

    Without *follow*, a link is refused too: for folders into which others write. Raises `OSError` as `open`.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    if not follow and path.is_symlink():
        raise Corrupt(path, found="it is a link to another place", advice="Put the file itself there")
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise Corrupt(path, found="it is no plain file", advice="Name a file")
    return os.fdopen(descriptor, "rb")


def read_regular(path: Path, *, bytes_max: int, follow: bool = True) -> bytes:
    """Return the whole content; `Corrupt` if there are more than *bytes_max*, of which no more are read."""
    with open_regular(path, follow=follow) as file:
        return read_open(file, path, bytes_max=bytes_max)


def read_open(file: BinaryIO, path: Path, *, bytes_max: int) -> bytes:
    """As `read_regular`, of a file that is open."""
    size = os.fstat(file.fileno()).st_size
    # No room is asked for that the file does not fill; it may be longer than it says.
    content = b"" if size > bytes_max else file.read(min(size, bytes_max) + 1)
    while size <= bytes_max and size < len(content) <= bytes_max and (more := file.read(_CHUNK_BYTES)):
        content += more
    if size > bytes_max or len(content) > bytes_max:
        text = f"it has {max(size, len(content))} bytes, and {bytes_max} are the most that are read"
        raise Corrupt(path, found=text, advice="Check where it came from")
    return content


# --- files that somebody else names -------------------------------------------------------------------
#
# Files that somebody else names by their path: opened only inside folders that the settings name.
#
# Whoever can publish an event can name any path, so a name must not become a read of any file of this
# machine.


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
