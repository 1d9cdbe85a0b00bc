"""What a router stands on, handed in, so that tests and embedding programs decide it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringrift.events.failure_reports import DeadLetterSink
from ringrift.events.log_seat import LogSeat
from ringrift.runtime import Runtime, system_runtime
from ringrift.settings import Settings, get_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a router stands on. The defaults keep everything inside this process."""

    runtime: Runtime = field(default_factory=system_runtime)
    settings: Settings = field(default_factory=get_settings)
    seat: LogSeat | None = None
    dead_letters: DeadLetterSink | None = None
