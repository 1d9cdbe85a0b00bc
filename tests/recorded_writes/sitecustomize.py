"""In the PYTHONPATH of processes under test: what they write by path into their data folder is recorded.

Everything that Python itself opens, makes, renames, links and removes is seen before it happens. What is
reached through an open folder has no absolute path, and is not recorded. The file TEST_WRITES_LOG gets a line
for each: the kind of write, the path from the data folder, and where in the product it is done.
"""

import os
import runpy
import sys
import traceback
from pathlib import Path

runpy.run_path(str(Path(__file__).parents[1] / "roomy_disk" / "sitecustomize.py"))
_LOG, _DATA = os.environ.get("TEST_WRITES_LOG", ""), os.environ.get("RINGRIFT_DATA_DIR", "")
_IS_CONTROL = "ringrift.cli" in sys.orig_argv
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_BY_PATH = -1  # what the system is given for no folder


def _written(event, args):
    if event == "open":
        return args[0] if isinstance(args[2], int) and args[2] & _WRITING else None
    if event in ("os.rename", "os.link"):
        return args[1] if args[3] == _BY_PATH else None
    if event in ("os.symlink", "os.mkdir"):
        return args[1 if event == "os.symlink" else 0] if args[2] == _BY_PATH else None
    if event in ("os.remove", "os.rmdir", "os.chmod"):
        return args[0] if args[-1] == _BY_PATH else None
    if event == "socket.bind":
        return args[1]
    return args[0] if event in ("os.truncate", "shutil.rmtree") else None


def _record(event, args):
    path = _written(event, args)
    if not isinstance(path, str | bytes | os.PathLike):
        return
    path = os.fsdecode(path)
    if not path.startswith(f"{_DATA}/"):
        return
    stack = traceback.extract_stack()
    where = [f"{each.filename}:{each.lineno}" for each in stack if "/ringrift/" in each.filename]
    line = f"{event} {path[len(_DATA) + 1 :]} {' '.join(where[-2:])}\n"
    descriptor = os.open(_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(descriptor, line.encode())
    os.close(descriptor)


if _LOG and _IS_CONTROL:
    sys.addaudithook(_record)
