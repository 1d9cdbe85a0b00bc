"""A scenario that has ended well must have proven its events."""

import sys
from pathlib import Path

import pytest
from recording import recorded

TESTS = Path(__file__).parents[1]
for folder in ("simulation", "unit/data", "unit/daemons", "unit/work"):  # their worlds
    sys.path.append(str(TESTS / folder))


def pytest_configure(config):
    config.addinivalue_line("markers", "scenario(*events): the cause of these events, brought about for real")


@pytest.fixture(autouse=True)
def recording(monkeypatch, own_process_scope):
    """Who sent and who received which event during the test."""
    with recorded(monkeypatch) as found:
        yield found


@pytest.fixture
def events(request):
    """The events that the scenario is about."""
    return request.node.get_closest_marker("scenario").args


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem):
    result = yield
    mark = pyfuncitem.get_closest_marker("scenario")
    if mark is not None:
        lacking = pyfuncitem.funcargs["recording"].lacking(mark.args)
        assert not lacking, "\n".join(["what was to be proven:", *lacking])
    return result
