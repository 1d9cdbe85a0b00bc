"""The table of failures and the tests that it names are the same."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "data-failures.md"
NAMED = re.compile(r"`(test_row_\d\d_\w+)` \(([\w/.]+)\)")


def rows():
    lines = [line for line in TABLE.read_text().splitlines() if re.match(r"\| \d+ \|", line)]
    return {int(line.split("|")[1]): NAMED.findall(line) for line in lines}


def test_every_row_that_concerns_data_has_tests():
    assert {*range(9, 23), 25, 26, 27, 28} <= {number for number, named in rows().items() if named}


@pytest.mark.parametrize(("number", "named"), rows().items())
def test_the_tests_of_a_row_are_there_and_bear_its_number(number, named):
    for name, file in named:
        assert name.startswith(f"test_row_{number:02d}_")
        assert f"def {name}(" in (ROOT / "tests" / file).read_text()


def test_no_test_of_a_row_is_left_out():
    listed = {name for named in rows().values() for name, _ in named}
    for file in (ROOT / "tests").rglob("test_data_*.py"):
        assert set(re.findall(r"def (test_row_\d\d_\w+)\(", file.read_text())) <= listed
