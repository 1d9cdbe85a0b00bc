"""Which places of the product a run reached: what tells the fuzz loop that an input is worth keeping.

Python 3.12 and later report each new line once, at almost no cost; before that every line is traced.
Only the product's own modules and the targets count.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ringrift

COUNTED = (
    str(Path(str(ringrift.__file__)).parent),
    str(Path(__file__).with_name("targets")),
)  # wherever it lies
TOOL = 3  # one of the two numbers that sys.monitoring leaves free


class Coverage:
    """Places reached by all runs so far; `new` holds those of the latest run that no earlier one reached."""

    def __init__(self) -> None:
        self.seen: set[tuple[object, ...]] = set()
        self.new: set[tuple[object, ...]] = set()
        self._monitored = hasattr(sys, "monitoring")
        if self._monitored:
            self._register()

    @contextmanager
    def watch(self) -> Iterator[None]:
        self.new = set()
        if self._monitored:
            yield
            return
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(None)

    def _note(self, place: tuple[object, ...]) -> None:
        if place not in self.seen:
            self.seen.add(place)
            self.new.add(place)

    def _register(self) -> None:
        monitoring = sys.monitoring
        monitoring.use_tool_id(TOOL, "fuzz")
        monitoring.register_callback(TOOL, monitoring.events.LINE, self._on_line)
        monitoring.set_events(TOOL, monitoring.events.LINE)

    def _on_line(self, code: CodeType, line: int) -> Any:
        if code.co_filename.startswith(COUNTED):
            self._note((code.co_filename, line))
        return sys.monitoring.DISABLE

    def _on_call(self, frame: FrameType, _event: str, _argument: object) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(COUNTED):
            return None
        last = frame.f_lineno

        def on_event(inner: FrameType, event: str, _argument: object) -> Any:
            nonlocal last
            if event == "line":
                self._note((name, last, inner.f_lineno))
                last = inner.f_lineno
            return on_event

        return on_event
