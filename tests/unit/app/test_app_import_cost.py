"""Importing the package loads nothing but itself; the names come when they are asked for."""

import subprocess
import sys

import pytest

import ringrift


def in_fresh_python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_import_loads_no_room():
    code = "import sys, ringrift; print([m for m in sys.modules if m.startswith('ringrift.')])"
    assert in_fresh_python(code) == "[]"


def test_import_takes_a_small_part_of_the_limit():
    code = (
        # Its own time: that of other programs on the machine is not its cost.
        "import time; began = time.process_time(); import ringrift; print(time.process_time() - began < 0.15)"
    )
    assert in_fresh_python(code) == "True"


@pytest.mark.parametrize("name", ringrift.__all__)
def test_every_public_name_is_there(name):
    assert getattr(ringrift, name) is not None
    assert name in dir(ringrift)


def test_the_lists_agree_and_a_wrong_name_is_an_attribute_error():
    assert set(ringrift._HOMES) == set(ringrift.__all__)
    with pytest.raises(AttributeError, match="no attribute 'get_ruoter'"):
        _ = ringrift.get_ruoter
