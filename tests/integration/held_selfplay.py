"""The real self-play job with a gate: while the named file exists, each process plays some games and waits.

However fast the machine is, a test meets the job in the middle of its games; however slow, it finds it there.
"""

import sys
import time
from pathlib import Path

from ringrift.jobs.frame import JobSpec, run_job
from ringrift.jobs.selfplay import SELFPLAY, run_selfplay

GAMES = 10  # fewer than there are slots: some of the games that a process resumed are unfinished at its gate
LOOK_S = 0.02


def held_command(gate):
    return ["{python}", __file__, str(gate)]


def main(gate):
    def run_held(job, params):
        tell, ended = job.progress, []

        def tell_and_wait(done, **fields):
            tell(done, **fields)
            ended.append(done)
            while len(ended) >= GAMES and gate.exists() and not job.stop.requested:
                time.sleep(LOOK_S)

        job.progress = tell_and_wait
        return run_selfplay(job, params)

    spec = JobSpec(SELFPLAY.kind, SELFPLAY.summary, SELFPLAY.params, run_held)
    return run_job(spec, ["--params", "-"])


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
