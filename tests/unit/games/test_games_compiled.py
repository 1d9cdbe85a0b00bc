"""Compiled code is kept between starts, and never outlives the rules it was compiled from."""

import os
import subprocess
import sys

import pytest

START = """
from ringrift.games.registry import load_game
from ringrift.games.ringrift.core import kernels
game = load_game("square8_2p")
states = game.new_states(4)
game.apply(states, game.legal(states).actions[:4])
game.play_random(states, seed=1)
game.observe(states)
missed = sum(sum(kernel.stats.cache_misses.values()) for kernel in
             (kernels.start_batch, kernels.legal_batch, kernels.apply_batch, kernels.play_random_batch,
              kernels.observe_batch))
print(missed)
"""

RULES = "from ringrift.games.compiled import compiled\n\n@compiled\ndef value(x):\n    return x + {added}\n"
ENTRY = """
from pathlib import Path
from inner_rules import value
from ringrift.games.compiled import cached_kernel, source_fingerprint

@cached_kernel(source_fingerprint(Path(__file__).parent))
def entry(x):
    return value(x)

print(entry(1), sum(entry.stats.cache_misses.values()))
"""


def run(code, **options):
    return subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=100, **options
    ).stdout.split()


def test_a_second_start_compiles_nothing():
    run(START)
    assert run(START) == ["0"]


LOAD = """
import os
from ringrift.games.compiled import load_stored_kernels
from ringrift.games.registry import is_compiled, load_game
from ringrift.games.ringrift.core import kernels
load_game("square8_2p")
load_stored_kernels()
used = (kernels.start_batch, kernels.legal_batch, kernels.apply_batch)
print(all(kernel.signatures for kernel in used), sum(sum(k.stats.cache_misses.values()) for k in used))
print(len(os.listdir("/proc/self/task")))
print(is_compiled("square8_2p"), is_compiled("open_spiel:tic_tac_toe"))
"""


def test_what_is_on_disk_is_loaded_without_being_compiled_or_run():
    run(START)
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # as in the host of jobs
    assert run(LOAD, env=one_thread) == ["True", "0", "1", "True", "False"]


@pytest.fixture
def small_game(tmp_path):
    (tmp_path / "entry_rules.py").write_text(ENTRY)

    def start(added):
        rules = tmp_path / "inner_rules.py"
        rules.write_text(RULES.format(added=added))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return [int(word) for word in run("import entry_rules", env=environment)]

    return start


def test_a_change_in_another_file_of_the_rules_is_noticed(small_game):
    assert small_game(10) == [11, 1]
    assert small_game(10) == [11, 0]
    assert small_game(20) == [21, 1]


TABLES = """
from pathlib import Path
from typing import NamedTuple
from ringrift.games.compiled import cached_kernel, source_fingerprint

class {name}(NamedTuple):
    size: int

@cached_kernel(source_fingerprint(Path(__file__)))
def entry(tables):
    return tables.size

print(entry({name}(7)))
"""


def test_machine_code_of_classes_that_are_gone_is_not_in_the_way(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for name in ("Tables", "Layout"):
        (tmp_path / "table_rules.py").write_text(TABLES.format(name=name))
        assert run("import table_rules", env=environment) == ["7"]


KERNEL = """
from ringrift.games.compiled import cached_kernel

@cached_kernel("0123456789abcdef")
def entry(x):
    return x + 1
"""
DAMAGE = """
import sys
from pathlib import Path
import kernel_rules
from ringrift.games.compiled import load_stored_kernels
for stored in Path(sys.argv[1]).glob("*.nb[ic]"):
    sound = stored.read_bytes()
    for damaged in (b"", sound[: len(sound) // 2], bytes(len(sound)), b"nothing", b"\\x80\\x05X"):
        stored.write_bytes(damaged)
        load_stored_kernels()
    print(stored.suffix, len(kernel_rules.entry.signatures))
    stored.write_bytes(sound)
load_stored_kernels()
print(len(kernel_rules.entry.signatures))
"""


def test_machine_code_that_is_damaged_on_disk_is_left_to_whoever_needs_it(tmp_path):
    """The host of all jobs loads it, and must not end because of it."""
    (tmp_path / "kernel_rules.py").write_text(KERNEL)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    run("import kernel_rules; kernel_rules.entry(1)", env=environment)
    code = DAMAGE.replace("sys.argv[1]", repr(str(tmp_path / "__pycache__")))
    *damaged, whole = run(code, env=environment)
    assert sorted(damaged) == [".nbc", ".nbi", "0", "0"]
    assert whole == "1"
