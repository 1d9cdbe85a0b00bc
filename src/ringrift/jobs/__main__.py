"""`python -m ringrift.jobs KIND …` runs one job; without a kind it lists them."""

from __future__ import annotations

import os
import sys

from ringrift.errors import ConfigError
from ringrift.jobs.kinds import KINDS, ExitCode, job_main

EXIT_INTERRUPTED = 130  # as shells report a program that Ctrl-C ended


def main(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, KINDS))
        lines = [f"  {kind:<{width}}  {summary}" for kind, summary in KINDS.items()]
        sys.stdout.write("Jobs (`KIND --help` for the parameters of one):\n" + "\n".join(lines) + "\n")
        return ExitCode.DONE
    one_thread_per_process()
    try:
        run = job_main(argv[0])
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return ExitCode.WRONG_INPUT
    return run(argv[1:])


def one_thread_per_process() -> None:
    """Read by the libraries that compute when they are loaded; jobs share the cores by processes."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")


def leave(code: int) -> None:
    """End at once: what a job made is on disk, and unloading libraries takes seconds on a busy machine."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        leave(main(sys.argv[1:]))
    except KeyboardInterrupt:  # before the job could take the signal: nothing was begun
        sys.exit(EXIT_INTERRUPTED)
