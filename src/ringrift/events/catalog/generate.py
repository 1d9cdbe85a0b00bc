"""Writes the files that derive from the catalog: `python -m ringrift.events.catalog.generate`."""

from __future__ import annotations

from pathlib import Path

from ringrift.events.catalog import CATALOG

_EVENTS = Path(__file__).resolve().parents[1]
HEADER = (
    "# Generated from the event catalog; change the catalog and run "
    "`python -m ringrift.events.catalog.generate`.\n"
)


def event_types_source() -> str:
    """The enum."""
    members = "".join(f'    {spec.name} = "{spec.value}"\n' for spec in CATALOG.values())
    return (
        f'{HEADER}"""Every event of the catalog, as an enum. A member equals its wire value."""\n\n'
        "from __future__ import annotations\n\nfrom enum import StrEnum\n\n\n"
        'class DataEventType(StrEnum):\n    """Every event; the value is what goes over the wire."""\n\n'
        f"{members}"
    )


def generated_files() -> dict[Path, str]:
    """Path to content, for every derived file."""
    return {_EVENTS / "event_types.py": event_types_source()}


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
