"""A real job with a gate: while the named file exists, each process of it makes some steps and then waits.

However fast the machine is, a test meets the job in the middle of its work; however slow, it finds it there.
Called as `held_job.py GATE STEPS KIND …` with the arguments of the kind.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

from ringrift.jobs.frame import run_job
from ringrift.jobs.kinds import job_main, one_thread_per_process

STEPS = 10  # fewer than the games at a time: of those that a process resumed, some are unfinished at its gate
LOOK_S = 0.02


def held_command(gate, kind, *argv, steps=STEPS, python=sys.executable):
    return [python, __file__, str(gate), str(steps), kind, *map(str, argv)]


def held(run, gate, steps):
    """The function of a job, standing still in the middle."""

    def run_held(job, params):
        tell, made = job.progress, []

        def tell_and_wait(done, **fields):
            tell(done, **fields)
            made.append(done)
            while len(made) >= steps and gate.exists() and not job.stop.requested:
                time.sleep(LOOK_S)

        job.progress = tell_and_wait
        return run(job, params)

    return run_held


def main(gate, steps, kind, *argv):
    one_thread_per_process()
    module = sys.modules[job_main(kind).__module__]
    spec = getattr(module, kind.upper())
    return run_job(replace(spec, run=held(spec.run, Path(gate), int(steps))), argv)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
