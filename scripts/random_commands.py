"""Run random command lines, drawn from what `--help` offers, and report every traceback and every hang.

    python scripts/random_commands.py --lines 2000 --seed 1

Words are right, wrong or absurd: names of the run, numbers out of range, texts that are no text, files that
are none. Most lines run in a process that is forked from one with the commands loaded; every tenth is
started as a person starts it. They work on copies of a small finished run, and on folders that are missing,
empty or files. Exit code 1 if a line ended in a traceback, by a signal, or not at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "integration"))

from loop_under_test import CONFIG, until, watched_loop

from ringrift.cli.main import app
from ringrift.runtime import system_runtime

LINE_S_MAX = 120.0  # a line that has not ended by then hangs
LONG_S = 4.0  # then what runs until it is stopped is asked to stop
STARTED_EVERY = 10
PROGRESS_EVERY = 100
FRESH_EVERY = 40  # lines after which the folder is copied anew
# These go on until somebody stops them, so an interrupt ends them.
UNTIL_STOPPED = {("run",), ("events", "tail"), ("play",), ("job",)}
ABSURD = [
    *(
        "",
        " ",
        "-",
        "--",
        "---",
        "0",
        "-1",
        "1",
        "7",
        "1.5",
        "nan",
        "inf",
        "-inf",
        "1e999",
        "0x10",
        "true",
        "null",
    ),
    *(
        "9" * 60,
        str(2**70),
        "{",
        "[" * 3000,
        '{"a": ' * 2000,
        '{"a": 1}',
        "x" * 5000,
        "%s%n",
        "$(id)",
        ";",
        "'",
    ),
    *("é", "日本", "\u202e", "a\nb", "a\tb", "\udcff", "a\udc80b"),
    *(
        "../../etc/passwd",
        "/dev/null",
        "/dev/full",
        "/dev/zero",
        "/proc/self/mem",
        "/nonexistent/x",
        ".",
        "~",
    ),
    *("~nobody_at_all/x", "square8_2p", "square99_2p", "connect_four_2p", "open_spiel:tic_tac_toe", "a,b,,c"),
    *("open_spiel:hex(board_size=99999999)", "games", "models", "10s", "-5m", "1e99h", "yesterday", "2h ago"),
    "2026-01-01T00:00",
]
JOB_SHARE = 0.08  # of the lines: a job loads the learner first


@dataclass
class Shape:
    """A command of the tree, with the words that its help names."""

    path: tuple[str, ...]
    options: list[tuple[str, bool]] = field(default_factory=list)  # name, whether a value follows
    arguments: int = 0


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="ringrift-commands-", ignore_cleanup_errors=True) as folder:
        found = try_lines(Path(folder), lines=options.lines, seed=options.seed)
    say(json.dumps(found["counts"], indent=2, sort_keys=True))
    for each in found["findings"]:
        words = " ".join(word if len(word) < 80 else f"{word[:70]}…" for word in each["line"])
        say(f"{each['what']}: ringrift {words!r}\n{each['said']}\n")
    say(f"{options.lines} lines, {len(found['findings'])} findings")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return 1 if found["findings"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where to write the result")
    return parser


def try_lines(folder: Path, *, lines: int, seed: int) -> dict[str, Any]:
    """Run so many lines; returns how they ended, and what is wrong."""
    lots = random.Random(seed)
    (folder / "finished").mkdir()
    finished = asyncio.run(make_run(folder / "finished"))
    shapes = commands()
    names = [CONFIG, *known_digests(finished)]
    counts: Counter[str] = Counter()
    findings = []
    place = folder / "place"
    for number in range(lines):
        if number % FRESH_EVERY == 0:
            lay_out(place, finished)
        words = draw_line(lots, shapes, names)
        code, said = run_line(words, place, started=number % STARTED_EVERY == 0)
        what = wrong_with(code, said)
        counts[f"{words[0] if words else '-'} {code}"[:60].encode("ascii", "replace").decode()] += 1
        if what:
            findings.append({"what": what, "line": words, "code": code, "said": said[-1500:]})
        if (number + 1) % PROGRESS_EVERY == 0:
            say(f"{number + 1} of {lines} lines, {len(findings)} findings", to=sys.stderr)
    return {"lines": lines, "seed": seed, "counts": dict(counts), "findings": findings}


async def make_run(folder: Path) -> Path:
    """A small run with a champion, stopped."""
    async with watched_loop(folder, tiny=True) as (loop, _):
        loop.start()

        async def promoted() -> bool:
            return (loop.data / "models").is_dir() and any((loop.data / "models").glob("*.safetensors"))

        await until(promoted, "a champion", loop)
        await loop.end()
        return loop.data


def commands() -> list[Shape]:
    """Every command below `ringrift`, with its options as the help prints them."""
    found: list[Shape] = []

    def walk(command: click.Command, path: tuple[str, ...]) -> None:
        context = click.Context(command, info_name=" ".join(path) or "ringrift")
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                if inner is not None:
                    walk(inner, (*path, name))
        shape = Shape(path)
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                shape.options += [(name, not parameter.is_flag) for name in parameter.opts]
            else:
                shape.arguments += 1
        found.append(shape)

    walk(app, ())
    listed = subprocess.run([sys.executable, "-m", "ringrift.jobs"], capture_output=True, text=True).stdout
    for kind in re.findall(r"^\s*([a-z]+)\s", listed, re.MULTILINE):
        told = subprocess.run(
            [sys.executable, "-m", "ringrift.jobs", kind, "--help"], capture_output=True, text=True
        ).stdout
        named = sorted(set(re.findall(r"--[a-z][a-z0-9-]*", told)))
        found.append(Shape(("job", kind), [(name, True) for name in named], arguments=1))
    return found


def known_digests(data: Path) -> list[str]:
    return sorted(
        path.name for path in (data / "blobs").rglob("*") if re.fullmatch(r"[0-9a-f]{64}", path.name)
    )[:5]


def draw_line(lots: random.Random, shapes: list[Shape], names: list[str]) -> list[str]:
    """A command with some of its options, each with a right, wrong or absurd word."""
    jobs = [shape for shape in shapes if shape.path[:1] == ("job",)]
    others = [shape for shape in shapes if shape not in jobs]
    shape = lots.choice(jobs if lots.random() < JOB_SHARE else others)
    words = [*shape.path]

    def value() -> str:
        return lots.choice(names) if lots.random() < 0.3 else lots.choice(ABSURD)

    rest: list[list[str]] = []
    for name, takes in lots.sample(shape.options, k=min(len(shape.options), lots.choice([0, 1, 1, 2, 3]))):
        rest.append([name, value()] if takes and lots.random() < 0.95 else [name])
    rest += [
        [value()] for _ in range(lots.choice([0, shape.arguments, shape.arguments, shape.arguments + 1]))
    ]
    lots.shuffle(rest)
    if lots.random() < 0.25 and shape.path[:1] != ("job",):
        rest.append(
            ["--data", lots.choice(["data", "missing", "file", "empty", "/proc", "/dev/null", *ABSURD])]
        )
    if shape.path == ("run",):
        rest.append(["--for", "1s", "--plain"])
    return words + [word for part in rest for word in part]


def lay_out(place: Path, finished: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copytree(finished, place / "data", symlinks=True, ignore_dangling_symlinks=True)
    (place / "empty").mkdir()
    (place / "file").write_text("not a folder")


def run_line(words: list[str], place: Path, *, started: bool) -> tuple[int | str, str]:
    """Run it in *place*; returns the exit code, or `hang`, and all that was said."""
    said = place.parent / "said.txt"
    with said.open("wb") as out:
        if started:
            argv = [sys.executable, "-m", "ringrift.cli", *words]
            try:
                child = subprocess.Popen(
                    argv,
                    cwd=place,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=environment(),
                    start_new_session=True,
                )
            except (ValueError, OSError):  # no program can be started with such words
                return "not started", ""
            pid = child.pid
        else:
            pid = fork_line(words, place, out.fileno())
    runtime = system_runtime()
    begun_s, asked = runtime.monotonic_s(), False
    code: int | str = "hang"
    pause_s = 0.005
    while runtime.monotonic_s() - begun_s < LINE_S_MAX:
        gone, status = os.waitpid(pid, os.WNOHANG)
        if gone:
            code = os.waitstatus_to_exitcode(status)
            break
        if not asked and is_long(words) and runtime.monotonic_s() - begun_s > LONG_S:
            asked = True
            os.kill(pid, signal.SIGINT)
        asyncio.run(runtime.sleep(pause_s))
        pause_s = min(0.1, pause_s * 1.3)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # whatever it left running
    if code == "hang":
        os.waitpid(pid, 0)
    elif started:
        child.returncode = 0  # it was waited for here
    return code, said.read_text(encoding="utf-8", errors="replace")


def is_long(words: list[str]) -> bool:
    return any(tuple(words[: len(path)]) == path for path in UNTIL_STOPPED)


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("RINGRIFT_")}
    return {**kept, "RINGRIFT_HEALTH_PORT": "0", "NO_COLOR": "1", "COLUMNS": "100"}


def fork_line(words: list[str], place: Path, out: int) -> int:
    """Run the command in a child of this process, which has loaded it already."""
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.setsid()
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment())
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, out), (2, out)):
            os.dup2(source, target)
        sys.argv = ["ringrift", *words]
        app.main(words)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (to be reported, whatever it is)
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wrong_with(code: int | str, said: str) -> str:
    if code == "hang":
        return "hang"
    if "Traceback (most recent call last)" in said:
        return "traceback"
    if isinstance(code, int) and code < 0 and code != -signal.SIGINT:
        return f"ended by signal {-code}"
    return ""


def say(text: str, *, to: TextIO = sys.stdout) -> None:
    to.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    to.flush()


if __name__ == "__main__":
    sys.exit(main())
