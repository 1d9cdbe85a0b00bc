"""Count the modules that a reader passes on three ways through the source, by one real run of each.

    python scripts/trace_journeys.py                # all three; exits 1 if one passes more than it may
    python scripts/trace_journeys.py game
    python scripts/trace_journeys.py --markdown     # the lists for docs/architecture.md

A journey is `scripts/journey_NAME.py`: it sets up real parts, then goes its way while its calls are watched.
Every module of `ringrift` counts in which a function was called, in this process or in one that took part.
Not counted, but printed beside the others: the helpers of the top level, the engine, on which every journey
stands, and what is the subject of another journey.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, Self

SCRIPTS = Path(__file__).resolve().parent
PACKAGE = SCRIPTS.parent / "src" / "ringrift"
TOP_LEVEL = "."
# What lies below the engine and belongs to no journey; `tests/data/ceilings.toml` groups them the same way.
HELPERS = frozenset({TOP_LEVEL, "foreign_files", "tls"})
ENGINE = frozenset({"engine"})


@dataclass(frozen=True, slots=True)
class Journey:
    """One way through the source, and how long it may be."""

    name: str
    title: str
    modules_max: int
    other_subjects: frozenset[str] = frozenset()  # rooms that it enters and that are not its subject

    @property
    def script(self) -> str:
        return f"journey_{self.name}"

    def counts(self, module: str) -> bool:
        return room_of(module) not in HELPERS | ENGINE | self.other_subjects


IN_JOBS = frozenset({"jobs", "games", "search", "network", "players"})
EVENTS = frozenset(
    {"events"}
)  # the subject of the journey of an event, which the other two meet on their way
JOURNEYS = {
    each.name: each
    for each in (
        Journey("game", "a game to a champion", 35, IN_JOBS | EVENTS),
        Journey("event", "an event to another process", 12),
        Journey("file", "a file to a verified copy", 25, EVENTS),
    )
}


class Trace:
    """Notes in which modules of `ringrift` functions are called while it is entered.

    Threads that were started before it was entered are not seen. A process that takes part has a trace of its
    own and leaves it with `write`; whoever started it takes that in with `add_file`.
    """

    def __init__(self) -> None:
        self._modules: dict[str, None] = {}  # in the order in which they were reached
        self._seen: set[CodeType] = set()

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(self._modules)

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.modules), encoding="utf8")

    def add_file(self, path: Path) -> None:
        """Take in what another process wrote; its modules come after those that are known already."""
        self._modules |= dict.fromkeys(json.loads(path.read_text(encoding="utf8")))

    def _note(self, frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code in self._seen:
            return
        self._seen.add(code)
        # To import a module is not to pass through it.
        if code.co_name != "<module>" and (module := module_at(code.co_filename)):
            self._modules[module] = None


def module_at(filename: str) -> str:
    """The module of `ringrift` that lies there, as in `learning.plan.plan`; empty for all other code."""
    path = Path(filename)
    if not path.is_relative_to(PACKAGE):
        return ""
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    room, _, rest = module.partition(".")
    return room if rest else TOP_LEVEL


# --- the command ----------------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("journeys", nargs="*", metavar="JOURNEY", help=f"of {', '.join(JOURNEYS)}; else all")
    parser.add_argument("--markdown", action="store_true", help="as lists for docs/architecture.md")
    options = parser.parse_args(argv)
    if unknown := set(options.journeys) - JOURNEYS.keys():
        parser.error(f"no such journey: {', '.join(sorted(unknown))}")
    if len(options.journeys) == 1:
        return one(JOURNEYS[options.journeys[0]], as_markdown=options.markdown)
    # Each in a process of its own: the objects of one must not be met by the next.
    marks = ["--markdown"] if options.markdown else []
    commands = ([sys.executable, __file__, name, *marks] for name in options.journeys or JOURNEYS)
    return max(subprocess.run(command, check=False).returncode for command in commands)


def one(journey: Journey, *, as_markdown: bool) -> int:
    """Go one journey and print it; 1 if it passes more modules than it may."""
    if not (SCRIPTS / f"{journey.script}.py").exists():
        sys.stderr.write(f"{journey.title}: left out, there is no scripts/{journey.script}.py\n")
        return 0
    trace = Trace()
    with tempfile.TemporaryDirectory(prefix="ringrift-journey-") as folder:
        importlib.import_module(journey.script).journey(Path(folder), trace)
    counted = [module for module in trace.modules if journey.counts(module)]
    beside = [module for module in trace.modules if not journey.counts(module)]
    lines = markdown(journey, counted) if as_markdown else plain(journey, counted, beside)
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    return int(len(counted) > journey.modules_max)


def plain(journey: Journey, counted: Sequence[str], beside: Sequence[str]) -> list[str]:
    return [
        f"{journey.title}: {len(counted)} modules, at most {journey.modules_max}",
        *(f"{number:4} {module}" for number, module in enumerate(counted, 1)),
        f"  not counted ({len(beside)}): {', '.join(beside)}",
    ]


def markdown(journey: Journey, counted: Sequence[str]) -> list[str]:
    rooms: dict[str, list[str]] = {}
    for module in counted:
        rooms.setdefault(room_of(module), []).append(module.partition(".")[2])
    return [
        f"**{journey.title[0].upper()}{journey.title[1:]}** ({len(counted)} modules)",
        "",
        "| room | modules, in the order in which they are reached |",
        "|---|---|",
        *(f"| `{room}/` | {', '.join(f'`{each}`' for each in inside)} |" for room, inside in rooms.items()),
        "",
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
