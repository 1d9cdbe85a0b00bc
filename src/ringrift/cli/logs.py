"""Where log lines go while a command runs: never to stdout, which belongs to the answer."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import structlog

from ringrift.errors import StorageReadOnly
from ringrift.files import make_folders, open_file, rename_file
from ringrift.redaction import hide_secrets
from ringrift.runtime import LogStderr, prepare_line

LOG_BYTES_MAX = 10_000_000  # days of a run; with its predecessor twice that


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Readable lines for a person at a terminal."""
    _configure(level, LogStderr(), structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))


def log_to_file(path: Path, level: int = logging.INFO) -> BoundedFile:
    """One JSON object a line; the caller closes the file."""
    try:
        file = BoundedFile(path, bytes_max=LOG_BYTES_MAX)
    except OSError as error:
        raise StorageReadOnly(f"the log {path} cannot be written: {error.strerror}") from None
    _configure(level, file, structlog.processors.JSONRenderer(default=str))
    return file


class BoundedFile:
    """A text file that is moved aside when it is full, in the place of its one predecessor.

    A line that cannot be written, perhaps because the disk is full, is counted and does not stop whoever
    logs; the next one is tried again.
    """

    def __init__(self, path: Path, *, bytes_max: int) -> None:
        self._path, self._bytes_max, self.lines_lost = path, bytes_max, 0
        make_folders(path.parent)
        self._file = self._open()

    def write(self, text: str) -> None:
        try:
            if self._file.tell() >= self._bytes_max:
                self._file.close()
                rename_file(self._path, self._path.with_suffix(f"{self._path.suffix}.1"))
                self._file = self._open()
            self._file.write(text.encode())
        except (OSError, ValueError):  # ValueError: closed, because it could not be opened again
            self.lines_lost += 1

    def flush(self) -> None:
        """Every line is written at once."""

    def close(self) -> None:
        self._file.close()

    def _open(self) -> BinaryIO:
        # Without a buffer: the last lines before a kill are those one looks for.
        return os.fdopen(open_file(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab", buffering=0)


def _configure(level: int, file: LogStderr | BoundedFile, renderer: structlog.typing.Processor) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            prepare_line,
            structlog.processors.format_exc_info,
            hide_secrets,  # after tracebacks became text, which may hold one, too
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", file)),
        # Modules take their logger when they are loaded, which may be before this is called.
        cache_logger_on_first_use=False,
    )
