"""Writes the files that derive from the catalog: `python -m ringrift.events.catalog.generate`."""

from __future__ import annotations

from pathlib import Path

from ringrift.events.catalog.rendered_code import emitters_stub, enum_source, payloads_source
from ringrift.events.catalog.rendered_docs import events_page

_EVENTS = Path(__file__).resolve().parents[1]
_CHECKOUT = _EVENTS.parents[2]


def generated_files() -> dict[Path, str]:
    """Path to content, for every derived file."""
    return {
        _EVENTS / "event_types.py": enum_source(),
        _EVENTS / "payloads.py": payloads_source(),
        _EVENTS / "emitters.pyi": emitters_stub(),
        _CHECKOUT / "docs" / "events.md": events_page(),
    }


def main() -> None:
    for path, text in generated_files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
