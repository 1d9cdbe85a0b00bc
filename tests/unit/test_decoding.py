"""Reading into types that nobody has read into before, by several threads at once."""

import subprocess
import sys

READERS = """
import sys, threading
import msgspec
from ringrift.decoding import convert_to, decode_as, unpack_as

sys.setswitchinterval(1e-6)  # each thread is interrupted while it prepares a type
FIELDS, THREADS, TYPES = 12, 4, 200
VALUE = {f"field{n}": {"x": [{"a": {"y": [1]}}]} for n in range(FIELDS)}
JSON, PACKED = msgspec.json.encode(VALUE), msgspec.msgpack.encode(VALUE)
READ = (
    lambda kind: decode_as(JSON, kind),
    lambda kind: unpack_as(PACKED, kind),
    lambda kind: convert_to(VALUE, kind),
)

def fresh_type():
    inner = msgspec.defstruct("Inner", [("a", dict[str, list[int]]), ("b", tuple[int, ...] | None, None)])
    return msgspec.defstruct("Outer", [(f"field{n}", dict[str, list[inner]]) for n in range(FIELDS)])

for number in range(TYPES):
    kind, begin, found = fresh_type(), threading.Barrier(THREADS), []

    def read(which):
        begin.wait()
        found.append(READ[which % len(READ)](kind))

    threads = [threading.Thread(target=read, args=(each,)) for each in range(THREADS)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [msgspec.to_builtins(each.field0["x"][0].a) for each in found] == [{"y": [1]}] * THREADS
"""


def test_threads_may_read_into_a_new_type_at_the_same_time():
    done = subprocess.run(
        [sys.executable, "-c", READERS], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
