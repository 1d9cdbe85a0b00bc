"""Asked in a process where no run ever was, no getter of the public paths makes a folder, a store or a key.

Questions are found by name on all paths, so a new getter is held to it without being listed here. What makes
files by its nature is in `MAKES`.
"""

import asyncio
import importlib
import inspect
import re
import shutil

import pytest
from public_answers import asks_nothing

from app._table import ALIASES
from ringrift.engine.opening import close_engine
from ringrift.process import process_scope
from ringrift.settings import Settings

ASKS = re.compile(r"^(get|is|can|check|should|has|estimate|list|describe|health|count|find|select)_\w+$")
VALUES = (BaseException, str, int, float, dict, list, tuple, set, frozenset, bool, type(None))
MAKES = {
    "get_engine": "opens the store, which is what it is for",
    "get_engine_blocking": "opens the store, which is what it is for",
    "get_instance": "makes the object of its class",
}


def questions():
    """Every function of a public path that asks, and takes no arguments to do so, by its name."""
    found = {}
    for path in sorted(ALIASES):
        if not ALIASES[path].available:
            continue
        module = importlib.import_module(path)
        for name in module.__all__:
            value = getattr(module, name, None)
            if inspect.isfunction(value) and ASKS.match(name) and asks_nothing(value) and name not in MAKES:
                found.setdefault(name, value)
    return found


def methods_of(thing):
    for name in dir(type(thing)):
        method = getattr(thing, name, None) if ASKS.match(name) and name not in MAKES else None
        if callable(method) and asks_nothing(method):
            yield name, method


def ask(call):
    """The answer. What is refused, with whatever error, is refused before it writes, too."""
    try:
        value = call()
        return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
    except Exception as error:
        return error


async def _awaited(value):
    async with asyncio.timeout(10.0):
        return await value


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:app:DeprecationWarning")
def test_no_getter_makes_anything_where_no_run_ever_was(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    monkeypatch.setenv("RINGRIFT_DATA_DIR", str(folder))
    monkeypatch.chdir(tmp_path)
    process_scope().drop(Settings)
    wrote = {}

    def look(name):
        if made := sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()):
            wrote[name] = made[:3]
            asyncio.run(close_engine())
            process_scope().clear()
            shutil.rmtree(folder)

    for name, call in questions().items():
        found = ask(call)
        look(name)
        if not isinstance(found, VALUES):
            for each, method in methods_of(found):
                ask(method)
                look(f"{name}().{each}")
    assert wrote == {}
