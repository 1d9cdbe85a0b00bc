"""`python -m ringrift.jobs KIND …` runs one job; without a kind it lists them."""

from __future__ import annotations

import sys

from ringrift.jobs.kinds import EXIT_INTERRUPTED, leave, main

if __name__ == "__main__":
    try:
        leave(main(sys.argv[1:]))
    except KeyboardInterrupt:  # before the job could take the signal: nothing was begun
        sys.exit(EXIT_INTERRUPTED)
