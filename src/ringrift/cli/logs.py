"""Where log lines go while a command runs: never to stdout, which belongs to the answer."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TextIO

import structlog

from ringrift.errors import StorageReadOnly


def log_to_stderr(level: int = logging.WARNING) -> None:
    """Readable lines for a person at a terminal."""
    _configure(level, sys.stderr, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()))


def log_to_file(path: Path, level: int = logging.INFO) -> TextIO:
    """One JSON object a line; the caller closes the file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8", buffering=1)
    except OSError as error:
        raise StorageReadOnly(f"the log {path} cannot be written: {error.strerror}") from None
    _configure(level, file, structlog.processors.JSONRenderer(default=str))
    return file


def _configure(level: int, file: TextIO, renderer: structlog.typing.Processor) -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=file),
        cache_logger_on_first_use=False,
    )
