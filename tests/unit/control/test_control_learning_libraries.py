"""A run that could not run a job says so before it starts."""

import pytest

from ringrift.control.run_options import OWN_KINDS, check_learning_libraries
from ringrift.errors import ConfigError
from ringrift.settings import JobSettings, Settings


def test_what_is_missing_and_what_to_do_is_said():
    with pytest.raises(ConfigError, match=r"needs numba, torch: pip install 'ringrift\[train\]'"):
        check_learning_libraries(Settings(), is_there=lambda name: name not in ("numba", "torch"))


def test_nothing_is_missing_here():
    check_learning_libraries(Settings())


def test_commands_of_ones_own_need_none_of_our_libraries():
    jobs = tuple(JobSettings(kind=kind, command=("mine",)) for kind in OWN_KINDS)
    check_learning_libraries(Settings(jobs=jobs), is_there=lambda _: False)
