"""The table of all daemon types, as the documentation shows it."""

from __future__ import annotations

from ringrift.daemons.graph import startup_key
from ringrift.daemons.registry import DaemonSpec, Registry

HEAD = (
    "| daemon | capability | what it does | needs | available |",
    "|---|---|---|---|---|",
)


def daemon_table(registry: Registry) -> str:
    """Return all rows as a Markdown table, in order of start."""
    specs = sorted(registry, key=startup_key)
    return "\n".join([*HEAD, *(_row(spec) for spec in specs)])


def _row(spec: DaemonSpec) -> str:
    settings = ", ".join(f"{key} {value}" for key, value in spec.settings.items())
    marks = [text for text, is_set in _marks(spec) if is_set]
    about = spec.about + (f" ({', '.join(marks)})" if marks else "")
    needs = ", ".join(need.value for need in spec.depends_on) or "nothing"
    face = spec.capability + (f": {settings}" if settings else "")
    return f"| `{spec.daemon_type}` | {face} | {about} | {needs} | {spec.unavailable_reason or 'yes'} |"


def _marks(spec: DaemonSpec) -> list[tuple[str, bool]]:
    return [
        ("critical", spec.critical),
        ("leader only", spec.leader_only),
        ("pausable", spec.pausable),
        ("own process", spec.isolation.value == "process"),
        (f"use {spec.deprecated_for}", spec.deprecated_for is not None),
    ]
