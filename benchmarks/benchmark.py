"""What every benchmark of this folder has in common.

A benchmark is a module with `run(quick) -> dict`, whose key `met` says whether every target was met, and
`table(result) -> str`, the same for people.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def command(run: Callable[[bool], Result], table: Callable[[Result], str], about: str | None) -> int:
    """Run one benchmark from the command line; return its exit code."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    result = run(options.quick)
    print(table(result))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2, default=str) + "\n")
    return 0 if result["met"] else 1
