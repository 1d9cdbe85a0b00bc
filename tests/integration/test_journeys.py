"""The ways of an event and of a file through the source stay as short as they are said to be."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_journeys.py"


@pytest.mark.parametrize(
    ("journey", "title"), [("event", "an event to another process"), ("file", "a file to a verified copy")]
)
def test_few_modules_are_passed_on_the_way(journey, title):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), journey], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{title}: " in done.stdout
