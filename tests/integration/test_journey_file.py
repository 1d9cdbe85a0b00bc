"""A file's way to a verified copy stays as short as it is said to be."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "trace_journeys.py"


def test_a_file_passes_few_modules_on_its_way_to_a_verified_copy():
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "file"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a file to a verified copy: " in done.stdout
