"""Every daemon of a default run has a test that stops it in a running machine and compares what happens.

The tables of the page on stages are made of these tests and of the daemon table:
`PYTHONPATH=tests:tests/unit/data python tests/simulation/test_levers.py` writes them.
"""

from pathlib import Path

import test_backup_daemons
import test_data_daemons
import test_event_daemons
import test_stage_daemons
import test_upkeep_daemons
import test_watch_daemons

from ringrift.daemons.registry import product_registry
from ringrift.daemons.types import DaemonType

PAGE = Path(__file__).parents[2] / "docs" / "stages.md"
OTHERS = {
    **test_stage_daemons.LOOP_SHOWN_BY,
    **test_backup_daemons.SHOWN_BY,
    **test_data_daemons.SHOWN_BY,
    **test_event_daemons.SHOWN_BY,
    **test_upkeep_daemons.SHOWN_BY,
    **test_watch_daemons.SHOWN_BY,
}
BEFORE_OTHERS = """
## The other daemons of a default run

They plan nothing of a config. What one of them did is not done while it is stopped, and the rest goes on.
`ringrift doctor` and `ringrift status` name each that somebody stopped, with who, why, since when, and what
is not done meanwhile.

"""


def table(heading, shown_by):
    rows = [f"| daemon | {heading} | shown by |", "|---|---|---|"]
    for name in sorted(shown_by):
        about = product_registry()[DaemonType(name)].about
        rows.append(f"| `{name.upper()}` | {about} | `{shown_by[name].__name__}` |")
    return "\n".join(rows) + "\n"


def tables():
    stages = table("what it does for the loop", test_stage_daemons.SHOWN_BY)
    return stages + BEFORE_OTHERS + table("what it does", OTHERS)


def test_every_daemon_of_a_default_run_has_a_test_that_stops_it():
    default = {
        spec.daemon_type.value
        for spec in product_registry()
        if "standard" in spec.profiles and not spec.unavailable_reason and spec.deprecated_for is None
    }
    assert sorted(default - {*test_stage_daemons.SHOWN_BY, *OTHERS}) == []
    assert OTHERS.keys() <= default


def test_the_page_shows_every_daemon_of_a_default_run():
    assert PAGE.read_text(encoding="utf8").endswith(tables()), f"run python {Path(__file__).name}"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf8")
    PAGE.write_text(text[: text.index("| daemon |")] + tables(), encoding="utf8")
