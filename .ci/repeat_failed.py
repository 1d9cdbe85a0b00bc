"""Run each test that failed once more, alone: one that passes then is printed as FLAKY."""

import json
import subprocess
import sys
from pathlib import Path

REPEATED_MAX = 20  # more than that is no accident
# `make test` runs four parts side by side, each with a cache of its own.
CACHES = tuple(Path(".pytest_cache") / part for part in ("", "1", "2", "3"))


def main() -> int:
    noted = [cache / "v/cache/lastfailed" for cache in CACHES]
    failed = sorted(test for path in noted if path.exists() for test in json.loads(path.read_text()))
    if not failed or len(failed) > REPEATED_MAX:
        sys.stdout.write(f"{len(failed)} tests failed; none is repeated\n")
        return 1
    broken = []
    for test in failed:
        again = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test])
        if again.returncode == 0:
            sys.stdout.write(f"FLAKY: {test}\n")
        else:
            broken.append(test)
    sys.stdout.write("".join(f"FAILED twice: {test}\n" for test in broken))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
