"""Run every benchmark beside its peers and print one report.

Each module here with a `run(quick)` function is a benchmark; it returns plain data, which `--json` keeps.
Run it on an otherwise idle machine: the figures are ratios measured in one run, but noise is noise.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent


def benchmarks(names: list[str]) -> list[Path]:
    found = [p for p in sorted(HERE.glob("*.py")) if "def run(" in p.read_text() and p != Path(__file__)]
    if unknown := sorted(set(names) - {p.stem for p in found}):
        sys.exit(f"no benchmark is called {unknown[0]!r}; there are: {', '.join(p.stem for p in found)}")
    return [p for p in found if not names or p.stem in names]


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((x.split(":")[1].strip() for x in info.read_text().splitlines() if "model name" in x), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
    }


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # so that child processes started by multiprocessing find it
    spec.loader.exec_module(module)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all if none is named")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    results: dict[str, dict[str, Any]] = {"machine": machine()}
    for path in benchmarks(options.names):
        print(f"\n== {path.stem}", flush=True)
        benchmark = load(path)
        result = benchmark.run(options.quick)
        print(benchmark.table(result), flush=True)
        results[path.stem] = result
    if options.json:
        options.json.write_text(json.dumps(results, indent=2, default=str) + "\n")
    missed = [name for name, result in results.items() if not result.get("met", True)]
    if missed:
        sys.exit(f"targets missed: {', '.join(missed)}")


if __name__ == "__main__":
    main()
