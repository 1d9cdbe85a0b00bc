"""The page about daemons shows the registry as it is. `python <this file>` writes its table anew."""

from __future__ import annotations

from pathlib import Path

from ringrift.daemons.documentation import HEAD, daemon_table
from ringrift.daemons.registry import product_registry

PAGE = Path(__file__).parents[3] / "docs" / "daemons.md"


def test_the_page_lists_every_daemon_as_the_registry_has_it() -> None:
    assert PAGE.read_text(encoding="utf-8").endswith(daemon_table(product_registry()) + "\n")


def write_table() -> None:
    text, _, _ = PAGE.read_text(encoding="utf-8").partition(HEAD[0])
    PAGE.write_text(text + daemon_table(product_registry()) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_table()
