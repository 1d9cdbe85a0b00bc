"""The trainer of the examples with a gate: while the named file exists it waits at its first progress.

Called as `held_trainer.py GATE TRAINER`; the trainer itself is run as it is.
"""

import importlib.util
import signal
import sys
import time
from pathlib import Path

LOOK_S = 0.02


def main(gate, trainer):
    found = importlib.util.spec_from_file_location("my_trainer", trainer)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    say, asked = module.say, []

    def say_and_wait(event, **fields):
        say(event, **fields)
        if event == "progress":
            before = signal.getsignal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, lambda *told: (asked.append(told), before(*told)))
            while gate.exists() and not asked:
                time.sleep(LOOK_S)

    module.say = say_and_wait
    return module.main()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
