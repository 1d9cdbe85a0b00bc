"""Who holds a role, in one text; and whether that process is known to be dead.

Only a process that shares its process ids with the holder can know that: same host, same namespace.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

from ringrift.runtime import Runtime

_NAMESPACE = "/proc/self/ns/pid"


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """Where process ids mean the same."""

    hostname: str
    namespace: str = ""

    @classmethod
    def here(cls, runtime: Runtime) -> ProcessPlace:
        try:
            return cls(runtime.hostname, os.readlink(_NAMESPACE))
        except OSError:  # a system without namespaces
            return cls(runtime.hostname)

    def holder(self, runtime: Runtime) -> str:
        """The name under which this process holds roles."""
        return f"{self.hostname}:{runtime.pid}:{runtime.new_id()}@{self.namespace}"

    def knows_dead(self, holder: str) -> bool:
        """Whether *holder* is a process of this place that no longer runs."""
        host, _, rest = holder.partition(":")
        pid, _, rest = rest.partition(":")
        namespace = rest.partition("@")[2]
        if host != self.hostname or namespace != self.namespace or not pid.isdigit():
            return False
        return not _runs(int(pid))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
