"""Wall clocks that are set by a day in each process of a run: nothing lost, nothing held beyond its lease.

`scripts/step_clocks.py` does it for minutes.
"""

import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "step_clocks.py"


@pytest.mark.timeout(600)
async def test_a_run_goes_on_while_the_clocks_of_its_processes_are_set_by_a_day(tmp_path):
    survive = runpy.run_path(str(SCRIPT))["survive"]
    result = await survive(3600.0, 3, tmp_path, tiny=True, deeds_max=2)
    assert result["problems"] == []
    assert len(result["settings_of_a_clock_that_were_read"]) >= 2, "no clock was set"
    assert result["control_process_starts"] == 2
