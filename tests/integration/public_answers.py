"""Every question about a run that the public paths offer, asked in this process: `answers()`.

A question is a getter of numbers, status or health, or of what a run decided: a plain function, or a method
of an object that a getter without arguments hands out. Those that take a config are asked about one. They are
found by their names on all the paths of `app`, so that a new one is asked, too.
"""

import asyncio
import dataclasses
import functools
import importlib
import inspect
import json
import re
import sys
import time

import msgspec
import psutil
from app.coordination.async_bridge_manager import get_bridge_manager

from app._table import ALIASES

WORDS = re.compile(
    r"(get_\w*(stats|status|health|metrics|summary|states?|score|level|priorities|weights|priority_configs|feedback"
    r"|quality|stage|judgment|iterations|transitions|models|production_model(_id)?|trigger_conditions)"
    r"|health_(check|summary)|analyze(_metrics)?|weights|plateaus|velocity|search_budget|refused_shards)$"
)
CONFIG = "connect_four_2p"
CONFIG_NAMES = {"config", "config_key"}
OBJECT = re.compile(r"^get_\w+$")
SLOWEST_S = 1.0


def plain(value):
    """*value* as JSON has it; what has no such form is its type's name."""
    if hasattr(value, "to_dict") and not isinstance(value, type):
        value = value.to_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        rows = [plain(each) for each in value]
        return sorted(rows, key=repr) if isinstance(value, set | frozenset) else rows
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)


def must_be_given(call):
    """The names of the arguments without which *call* cannot be made; None if that is not told."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return None
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    empty = inspect.Parameter.empty
    return [each.name for each in parameters if each.default is empty and each.kind not in variadic]


def asks_nothing(call):
    """Whether *call* can be made without arguments."""
    return must_be_given(call) == []


def asking(call):
    """*call*, or *call* about a config if it takes one; None if it wants anything else."""
    names = must_be_given(call)
    if names is None or len(names) > 1 or not CONFIG_NAMES.issuperset(names):
        return None
    return functools.partial(call, CONFIG) if names else call


def questions():
    """Every question by its name, which is that of the object and the method, or of the function."""
    found = {}
    for path in sorted(ALIASES):
        if not ALIASES[path].available:
            continue
        module = importlib.import_module(path)
        for name in getattr(module, "__all__", dir(module)):
            value = getattr(module, name, None)
            if not inspect.isfunction(value):
                continue
            if WORDS.match(name) and (call := asking(value)) is not None:
                found.setdefault(name, call)
            elif OBJECT.match(name) and asks_nothing(value) and not inspect.iscoroutinefunction(value):
                found.setdefault(f"{name}()", value)
    return found


def methods(name, thing):
    for each in dir(type(thing)):
        method = getattr(thing, each, None) if WORDS.match(each) else None
        if callable(method) and (call := asking(method)) is not None:
            yield f"{name}.{each}", call


def answer(call):
    began_s = time.monotonic()
    try:
        value = call()
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
        value = plain(value)
    except Exception as error:  # an answer as any other, for whoever compares
        value = {"raised": f"{type(error).__name__}: {error}"}
    return {"answer": value, "took_s": time.monotonic() - began_s}


async def _awaited(value):
    return await value


def answers(wanted=()):
    """What this process is told, by question, and how long each took; all questions, or those *wanted*."""
    found = {}
    for name, call in questions().items():
        if wanted and not any(each == name or each.startswith(f"{name}.") for each in wanted):
            continue
        if not name.endswith("()"):
            found[name] = answer(call)
            continue
        try:
            thing = call()
        except Exception as error:
            found[name] = {"answer": {"raised": repr(error)}, "took_s": 0.0}
            continue
        for each, method in methods(name, thing):
            if not wanted or each in wanted:
                found[each] = answer(method)
    return found


def left_running():
    """What this process runs besides the calls that were made: processes, and tasks of the blocking calls."""
    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    return children + get_bridge_manager().get_stats()["under_way"]


if __name__ == "__main__":
    json.dump({"answers": answers(sys.argv[1:]), "left_running": left_running()}, sys.stdout)
