"""Several processes of pytest collect the same files, and each takes the next that none of them has begun.

`make test` runs what mostly waits for real processes in this way: however long a file takes on this machine,
the processes end together.
"""

from pathlib import Path

import pytest

# They come first: whoever began one of them last would keep the others waiting.
LONGEST = ("test_learning_world", "test_stage_daemons", "test_loop_kills")


def pytest_addoption(parser):
    about = "tests of files that another process with the same folder has begun are left to that one"
    parser.addoption("--share", metavar="FOLDER", type=Path, help=about)


def pytest_configure(config):
    if (folder := config.getoption("share")) is not None:
        config.pluginmanager.register(SharedFiles(folder, config.rootpath))


class SharedFiles:
    """Which files are ours is a file in *folder* for each that was begun."""

    def __init__(self, folder, root):
        self._folder, self._root = folder, root
        self._ours = {}

    def pytest_collection_modifyitems(self, items):
        order = {name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: order.get(item.path.stem, len(order)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item, nextitem):
        if item.path not in self._ours:
            self._ours[item.path] = self._begin(item.path)
        if self._ours[item.path]:
            return None
        item.session._setupstate.teardown_exact(nextitem)  # what our last test left standing for this one
        return True

    def _begin(self, path):
        name = "-".join(path.relative_to(self._root).parts)
        try:
            (self._folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True
