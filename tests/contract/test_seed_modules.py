"""Every module and name of the documents leads somewhere: to its home, or to a planned capability.

`tests/data/documents` carries what the five documents name: module paths and file names (`modules.csv`) and
the names that they import or list by module (`names.csv`).
"""

import csv
import importlib
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import app
from app._table import ALIASES, AliasFinder, PlannedModule
from ringrift.capabilities import CAPABILITIES, capability
from ringrift.errors import NotBuilt

DOCUMENTS = Path(__file__).parents[1] / "data" / "documents"
PLANNED_MESSAGE = re.compile(r"capability not built yet: (\w+) \(comes with [\w ]+\)")


def rows(name):
    with (DOCUMENTS / name).open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def alias_of(documented):
    """Return the table's path for a dotted path, a file path or a bare file name."""
    path = documented.removesuffix(".py").replace("/", ".")
    if path in ALIASES:
        return path
    found = [known for known in ALIASES if known.endswith(f".{path}")]
    return min(found, key=len) if found else None


def import_quietly(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return importlib.import_module(path)


@pytest.mark.parametrize("documented", [row["module"] for row in rows("modules.csv")])
def test_every_documented_module_resolves_or_names_its_planned_capability(documented):
    path = alias_of(documented)
    assert path is not None, f"{documented} is in no row of the table"
    alias = ALIASES[path]
    if alias.available:
        assert import_quietly(path).__name__ == path
        for home in alias.built_homes():
            importlib.import_module(home)
    else:
        with pytest.raises(PlannedModule) as raised:
            import_quietly(path)
        assert PLANNED_MESSAGE.search(str(raised.value)).group(1) in CAPABILITIES


@pytest.mark.parametrize("row", rows("names.csv"), ids=lambda row: f"{row['module']}.{row['name']}")
def test_every_documented_name_is_there_or_planned(row):
    try:
        module = import_quietly(row["module"])
        assert getattr(module, row["name"]) is not None
    except PlannedModule as planned:
        assert not capability(planned.capability).built


def test_the_planned_modules_are_those_of_capabilities_that_are_not_built():
    planned = {path: alias.capability for path, alias in ALIASES.items() if not alias.available}
    for path, owner in sorted(planned.items(), key=lambda item: item[1]):
        print(f"{path}: {capability(owner).reason}")
    assert {owner for owner in planned.values() if capability(owner).built} == set()
    assert {name for alias in ALIASES.values() for name in alias.planned.values()} <= set(CAPABILITIES)


def test_every_listed_name_of_every_alias_exists():
    for path, alias in ALIASES.items():
        if alias.available:
            module = import_quietly(path)
            missing = [name for name in dir(module) if not hasattr(module, name)]
            assert (path, missing) == (path, [])


def test_a_planned_module_says_what_it_comes_with():
    with pytest.raises(
        ImportError, match=r"capability not built yet: idle_shutdown \(comes with the cluster\)"
    ):
        importlib.import_module("app.coordination.unified_idle_shutdown_daemon")
    with pytest.raises(NotBuilt):
        importlib.import_module("app.coordination.unified_idle_shutdown_daemon")


def test_a_planned_name_of_the_package_says_what_it_comes_with():
    with pytest.raises(ImportError, match="capability not built yet: locks"):
        exec("from app.coordination import training_lock", {})


def test_a_typo_gets_a_suggestion():
    expected = r"no module app\.coordination\.event_ruoter; did you mean app\.coordination\.event_router\?"
    with pytest.raises(ModuleNotFoundError, match=expected):
        importlib.import_module("app.coordination.event_ruoter")
    module = importlib.import_module("app.coordination.health_check_helper")
    with pytest.raises(AttributeError, match="did you mean HealthCheckHelper"):
        _ = module.HealthCheckHelpr


def test_a_misspelled_name_cannot_be_imported():
    with pytest.raises(ImportError, match="cannot import name"):
        exec("from app.coordination import initialize_everything", {})


def test_an_old_path_warns_where_it_is_used_and_still_works():
    sys.modules.pop("app.coordination.base_handler", None)
    with pytest.warns(DeprecationWarning, match=r"import from app\.coordination\.handler_base") as caught:
        from app.coordination.base_handler import BaseEventHandler  # noqa: PLC0415 - the import is the test
    assert BaseEventHandler is import_quietly("app.coordination.handler_base").HandlerBase
    assert caught[0].filename == __file__


def test_star_import_gives_the_home_names():
    names = {}
    exec("from app.coordination.health_check_helper import *", names)
    assert "HealthCheckHelper" in names


def test_the_hook_is_installed_once():
    importlib.reload(app)
    assert sum(isinstance(finder, AliasFinder) for finder in sys.meta_path) == 1


def test_import_of_app_loads_no_home():
    heavy = (
        "ringrift.coordination.event_router ringrift.daemons.manager "
        "ringrift.coordination.coordination_bootstrap ringrift.coordination.system_health_monitor asyncio"
    )
    check = f"import sys, app, app.coordination; print([m for m in {heavy.split()!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# --- the page -------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[2] / "docs" / "import-paths.md"
INTRODUCTION = """# Import paths of the documents

The documents name modules such as `app.coordination.event_router`. All of these paths work: `import app`
installs one import hook, which looks each name up in its home in `ringrift` when it is first used.
`app.coordination.X` is `ringrift.coordination.X`; the exceptions are in `src/app/_table.py`: paths that are
another name, and what a path gives beside its file.

- A module, or a name, of a capability that is not built yet raises an `ImportError` (`PlannedModule`, also a
  `ringrift.errors.NotBuilt`) that names the capability and what it comes with.
- A mistyped path is told with the nearest one that exists.
- An old path works, and warns (`DeprecationWarning`) with the path to use instead.
- A path gives what its homes list in `__all__`, and nothing that they merely import;
  `tests/data/app_names.json` pins all of it.

New code imports from `ringrift`. This page is written by `python tests/contract/test_seed_modules.py`;
a test holds the two together.
"""


def page():
    present = ["| path | home |", "|---|---|"]
    planned = {}
    old = ["| old path | use instead |", "|---|---|"]
    for path, alias in sorted(ALIASES.items()):
        if alias.deprecated:
            old.append(f"| `{path}` | `{alias.deprecated}` |")
        elif alias.available:
            homes = ", ".join(f"`{home}`" for home in alias.built_homes())
            also = ", ".join(f"`{name}`: {owner}" for name, owner in sorted(alias.planned.items()))
            present.append(f"| `{path}` | {homes}{f' (planned: {also})' if also else ''} |")
        else:
            planned.setdefault(alias.capability, []).append(f"`{path}`")
    rows = ["| capability | comes with | paths |", "|---|---|---|"]
    rows += [
        f"| {owner} | {capability(owner).part.value} | {', '.join(paths)} |"
        for owner, paths in sorted(planned.items())
    ]
    parts = [INTRODUCTION, "## Present\n", *present, "\n## Planned\n", *rows, "\n## Old\n", *old]
    return "\n".join(parts) + "\n"


def test_the_page_is_the_table():
    assert PAGE.read_text(encoding="utf8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf8")
