"""House rules that no linter knows. Each rule prints every place that breaks it."""

import ast
import re
import tomllib
from graphlib import CycleError, TopologicalSorter

import pytest

from ringrift.capabilities import CAPABILITIES
from size_ceilings import dotted, imported
from source_tree import ROOT, SOURCE, modules, parsed, text_of

CODE = ("src", "tests", "scripts", "benchmarks", "examples")
FUNCTION_LINES_MAX = 60
DOCUMENT_LINE_MAX = 120

# The documents' public names stay as they are at the surface; inside, names say what a thing is.
PUBLIC_NAMES = {
    "BandwidthManager",
    "DaemonManager",
    "HealthCheckHelper",
    "SingletonMixin",
    "ThresholdManager",
    "UnifiedEventRouter",
    "UnifiedHealthManager",
    "UnifiedQueuePopulator",
}
VAGUE = re.compile(r"(Manager|Helper|Utils?|Mixin|Wrapper)$|^(Unified|Enhanced|New)[A-Z]")
VAGUE_EXCEPT = {"NewWork"}  # an item to add, before it has an id
VAGUE_FILES = re.compile(r"^(utils?|helpers?|misc|common|manager\d+|base_base)\.py$")
HISTORY = re.compile(r"\b20[12]\d-\d\d|\b(Phase|Sprint|Session) \d|\b(TODO|FIXME|XXX|HACK)\b")
CLOCKS = re.compile(r"\btime\.(time|monotonic|sleep|perf_counter)\(|datetime\.now\(|asyncio\.sleep\(")
CLOCK_READERS = {"ringrift/clock.py", "ringrift/runtime.py", "ringrift/testing/simulation.py"}

# A process that holds its data folder writes through the open folder: `ringrift.files`. These rooms and
# modules work elsewhere (a job's own folder, an archive, a file that a person named) or where no run is.
BY_PATH = ("games", "search", "network", "players", "jobs", "testing", "cli", "events/catalog")
BY_PATH += ("data/backup/archive.py", "data/backup/restore.py", "data/transactions.py")
PATH_WRITES = {"write_bytes", "write_text", "mkdir", "unlink", "rmdir", "rename", "symlink_to", "hardlink_to"}
OS_WRITES = {"replace", "rename", "link", "symlink", "remove", "unlink", "mkdir", "makedirs", "truncate"}

# Names with an underscore that libraries document, and the few of theirs that are used although they are not.
PUBLIC_WITH_UNDERSCORE = {"_exit", "_current_frames", "_replace"}
PRIVATE_OF_LIBRARIES = {
    "ringrift/daemons/running.py": {"_initializing"},
    "ringrift/data/backup/run_states.py": {"_Decompress"},
    "ringrift/events/delivery.py": {"_asyncio_future_blocking"},
    "ringrift/events/router_loop.py": {"_log_destroy_pending"},
    "ringrift/games/compiled.py": {"_cache", "_cache_file", "_impl", "_index_key", "_load_index"},
    "ringrift/network/engines.py": {"_convolution_pointwise", "_reorder_convolution_weight"},
}


def offences(check):
    found = []
    for path in modules():
        text = text_of(path)
        name = path.relative_to(SOURCE).as_posix()
        found += [f"src/{name}:{line}: {what}" for line, what in check(name, text)]
    return found


def long_functions(name, text):
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name} has {length} lines"


def vague_names(name, text):
    # A file of the documents' vocabulary has the name of their module.
    if VAGUE_FILES.match(name.rsplit("/", 1)[-1]) and not name.startswith("ringrift/coordination/"):
        yield 1, "a file name that says nothing"
    for node in ast.walk(parsed(text)):
        is_vague = isinstance(node, ast.ClassDef) and VAGUE.search(node.name)
        if is_vague and node.name not in PUBLIC_NAMES | VAGUE_EXCEPT:
            yield node.lineno, f"vague name {node.name}"


def history(name, text):
    for number, line in enumerate(text.splitlines(), 1):
        if HISTORY.search(line):
            yield number, "history or an unfinished thing"


def direct_clocks(name, text):
    if name in CLOCK_READERS:
        return
    for number, line in enumerate(text.splitlines(), 1):
        if CLOCKS.search(line):
            yield number, "a clock read or sleep outside the Runtime"


def writes_by_path(name, text):
    if name.startswith("app/") or name.removeprefix("ringrift/").startswith(BY_PATH):
        return
    for node in ast.walk(parsed(text)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_os = isinstance(node.func.value, ast.Name) and node.func.value.id == "os"
        through_folder = any((word.arg or "").endswith("dir_fd") for word in node.keywords)
        modes = [each.value for each in node.args if isinstance(each, ast.Constant)]
        opens = node.func.attr == "open" and not of_os and modes and str(modes[0])[:1] in "wax"
        renames = node.func.attr == "replace" and not of_os and len(node.args) == 1 and not node.keywords
        if (
            opens
            or renames
            or (node.func.attr in (OS_WRITES if of_os else PATH_WRITES) and not through_folder)
        ):
            yield node.lineno, f"{ast.unparse(node)}: goes by path"


def swallowed_errors(name, text):
    for node in ast.walk(parsed(text)):
        if not isinstance(node, ast.ExceptHandler):
            continue
        broad = node.type is None or getattr(node.type, "id", "") in {"Exception", "BaseException"}
        marked = "BLE001" in text.splitlines()[node.lineno - 1]
        if broad and not marked and not any(isinstance(x, ast.Raise) for x in ast.walk(node)):
            yield node.lineno, "a broad except that keeps the error"


def inner_imports(name, text):
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Import | ast.ImportFrom):
                    yield inner.lineno, "an import inside a function"


def is_private(name):
    """Whether only its owner uses this name: `__this__` and `_this_` are Python's own."""
    return name.startswith("_") and not name.endswith("_")


def own_private_names(tree):
    """What the classes of a module call private: their methods, fields and nested classes."""
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(cls):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_itself(node):
                yield node.attr


def of_itself(node):
    """Whether an attribute is one of `self`, `cls` or `super()`."""
    owner = node.value.func if isinstance(node.value, ast.Call) else node.value
    return isinstance(owner, ast.Name) and owner.id in {"self", "cls", "super"}


def private_attributes_of_others(name, text):
    tree = parsed(text)
    libraries = PRIVATE_OF_LIBRARIES.get(name, set())
    known = {*own_private_names(tree), *libraries, *PUBLIC_WITH_UNDERSCORE}
    used = set()
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Attribute) and not of_itself(node):
            found = [node.attr]
        elif isinstance(node, ast.ImportFrom):
            found = [each.name for each in node.names]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"getattr", "setattr", "hasattr"}:
            found = [str(each.value) for each in node.args[1:2] if isinstance(each, ast.Constant)]
        used.update(found)
        for each in found:
            if is_private(each) and each not in known:
                yield node.lineno, f"{each} belongs to another module"
    for each in libraries - used:
        yield 1, f"{each} is not used any more: take it out of PRIVATE_OF_LIBRARIES"


@pytest.mark.parametrize(
    "check",
    [
        long_functions,
        vague_names,
        history,
        direct_clocks,
        writes_by_path,
        swallowed_errors,
        inner_imports,
        private_attributes_of_others,
    ],
)
def test_source_is_tidy(check):
    assert offences(check) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("class A:\n    def go(self, event):\n        event._seq = 1", 1),
        ("class A:\n    def go(self, event):\n        return getattr(event, '_seq', 0)", 1),
        ("from ringrift.events.event import _seq", 1),
        ("class A:\n    _seq: int = 0\ndef go(event):\n    event._seq += 1", 0),
        ("class A:\n    def __init__(self):\n        self._seq = self._base = super()._start()", 0),
        ("class A:\n    def go(self):\n        self.other._seq = 1", 1),
        ("found = point._replace(x=1)\nmember._value_", 0),
    ],
)
def test_private_attributes_are_found(text, found):
    assert len(list(private_attributes_of_others("ringrift/some.py", text))) == found


def test_broad_excepts_stand_only_where_somebody_elses_code_is_isolated():
    places = {path.relative_to(SOURCE).as_posix() for path in modules() if "BLE001" in text_of(path)}
    assert len(places) <= 7, sorted(places)


def loaded_with(tree):
    """The import statements that run when a module is loaded."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield from (each for each in ast.walk(node) if isinstance(each, ast.Import | ast.ImportFrom))


def test_no_module_is_loaded_in_a_circle():
    """Type checkers and import-linter see none: it shows when somebody loads the wrong one first."""
    names = {dotted(path): path for path in modules()}
    loads = {
        name: {each for each in imported(loaded_with(parsed(text_of(path))), names) if each in names}
        for name, path in names.items()
    }
    try:
        TopologicalSorter({name: needs - {name} for name, needs in loads.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"modules that load each other: {' -> '.join(error.args[1])}")


def test_one_name_one_class():
    homes = {}
    for path in modules():
        for node in parsed(text_of(path)).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path.relative_to(SOURCE).as_posix())
    twice = {name: where for name, where in homes.items() if len(where) > 1}
    assert twice == {}


STORE_KEY = re.compile(r"([a-z][a-z_-]*/)+|[a-z][a-z_-]*(/[a-z][a-z_.-]*)+")


def store_keys():
    """What looks like a key of the store, or the beginning of keys, and where it is spelt."""
    homes = {}
    for path in modules():
        # Contract suites make keys up.
        if path.name.endswith("_contract.py"):
            continue
        for node in ast.walk(parsed(text_of(path))):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
            if is_text and STORE_KEY.fullmatch(node.value):
                homes.setdefault(node.value, set()).add(path.relative_to(SOURCE).as_posix())
    return homes


def test_a_key_of_the_store_is_spelt_in_one_module():
    """Two spellings drift apart, and the reader of one finds nothing."""
    homes = store_keys()
    twice = {key: sorted(where) for key, where in homes.items() if len(where) > 1}
    # A whole key of which another module has the beginning; a first part alone stands for a family of keys.
    begun = {
        key: (where, prefix)
        for prefix, owners in homes.items()
        if prefix.endswith("/") and prefix.count("/") > 1
        for key, where in homes.items()
        if key != prefix and key.startswith(prefix) and where != owners
    }
    assert "learning/fact/" in homes
    assert (twice, begun) == ({}, {})


def unused_words():
    """The words that the glossary keeps out of names."""
    table = (
        (ROOT / "docs" / "glossary.md").read_text(encoding="utf8").split("## Words that names do not use")[1]
    )
    cells = re.findall(r"^\| ([a-z, ]+) \|", table, flags=re.MULTILINE)
    return {word for cell in cells for word in cell.split(", ")} - {"not"}


def test_names_of_classes_and_files_use_the_words_of_the_glossary():
    unused, found = unused_words(), []
    assert "wish" in unused
    for path in modules():
        name = path.relative_to(SOURCE).as_posix()
        names = {path.stem} | {n.name for n in ast.walk(parsed(text_of(path))) if isinstance(n, ast.ClassDef)}
        words = {each: {word.lower() for word in re.findall(r"[A-Z]?[a-z]+", each)} for each in names}
        found += [
            f"{name}: {each}"
            for each, used in words.items()
            if {w.removesuffix("s") for w in used | {""}} & unused or used & unused
        ]
    assert found == []


# Names of functions, variables and constants that keep such a word: public, stored, or of the field.
KEEPS_ITS_WORD = {
    "coordination/backpressure.py": {"book"},  # an option of a public class
    "coordination/duration_scheduler.py": {"book"},
    "data/config.py": {"FILES_PER_TRIP"},  # a public name of `app.coordination.sync_constants`
    "jobs/evaluation/matches.py": {"game_book"},  # the opening book of a match
}


def names_in_functions(tree):
    """What functions, parameters, variables, constants and private attributes are called."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_private(node.attr):
            yield node.attr


def test_names_of_functions_parameters_variables_and_constants_use_the_words_of_the_glossary():
    unused, found = unused_words(), []
    for path in modules():
        name = path.relative_to(SOURCE).as_posix().removeprefix("ringrift/")
        for each in set(names_in_functions(parsed(text_of(path)))) - KEEPS_ITS_WORD.get(name, set()):
            words = set(each.strip("_").lower().split("_"))
            if {word.removesuffix("s") for word in words} & unused or words & unused:
                found.append(f"{name}: {each}")
    assert found == []


BRITISH = re.compile(
    r"colour|neighbour|favour|behaviour|honour|licence|defence|judgement|catalogue|centre|labelled|fulfil(?!l)|analyse(?!s)"
    r"|(initial|normal|optim|quant|maxim|minim|general|util|summar|serial|recogn|organ|synchron)is[aei]",
    re.IGNORECASE,
)
# Names that a person, another program or a store goes by.
STAYS_BRITISH = {"NEIGHBOURS", "neighbours", "analyse"}


def test_names_are_spelled_as_in_the_documents():
    found = []
    for path in modules():
        tree = parsed(text_of(path))
        names = {path.stem, *names_in_functions(tree)}
        names |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        found += [f"{path.stem}: {each}" for each in names - STAYS_BRITISH if BRITISH.search(each)]
    assert found == []


def test_test_files_have_unique_names():
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def architecture_page():
    return (ROOT / "docs" / "architecture.md").read_text(encoding="utf8")


def rooms():
    """The folders and modules at the top of the package, as the page writes them."""
    folders = {f"{path.parent.name}/" for path in (SOURCE / "ringrift").glob("*/__init__.py")}
    return folders | {path.name for path in (SOURCE / "ringrift").glob("*.py") if path.name != "__init__.py"}


def test_the_architecture_page_names_every_room_and_no_other():
    tree = architecture_page().split("```")[1]
    named = re.findall(r"^  (\w+(?:/|\.py)) ", tree, flags=re.MULTILINE)
    assert sorted(named) == sorted(rooms())


def test_the_architecture_page_gives_the_layers_as_they_are_checked():
    text = " ".join(architecture_page().split())
    told = re.search(r"Dependencies point one way: `([^`]+)`, and `([^`]+)`", text).groups()
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    contracts = {each["id"]: each for each in settings["tool"]["importlinter"]["contracts"]}
    for chain, contract in zip(told, ("layers", "learning_layers"), strict=True):
        checked = [re.findall(r"\w+", layer) for layer in contracts[contract]["layers"]]
        there = [[room for room in layer if {f"{room}/", f"{room}.py"} & rooms()] for layer in checked]
        assert [layer.split(", ") for layer in chain.split(" → ")] == [layer for layer in there if layer]


def test_the_architecture_page_says_what_is_not_built():
    missing = architecture_page().split("## What is not there yet")[1]
    rows = re.findall(r"^\| (the \w+)[^|]*\| ([\w, ]+) \|$", missing, flags=re.MULTILINE)
    told = {(part, name) for part, names in rows for name in names.split(", ")}
    assert told == {(each.part.value, each.name) for each in CAPABILITIES.values() if not each.built}


def test_lines_of_the_documents_are_short_enough_to_read_and_to_compare():
    """Tables and code excepted, which cannot be wrapped."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    long = []
    for page in pages:
        in_code = False
        for number, line in enumerate(page.read_text(encoding="utf8").splitlines(), 1):
            if line.strip().startswith("```"):
                in_code = not in_code
            elif not in_code and not line.startswith("|") and len(line) > DOCUMENT_LINE_MAX:
                long.append(f"{page.relative_to(ROOT)}:{number}")
    assert long == []


def test_every_link_in_the_documents_leads_somewhere():
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    dead = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in pages
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf8"))
        if not (page.parent / target).exists()
    ]
    assert dead == []


def is_module(name):
    """Whether a dotted name begins with a module, or is one that its package says."""
    folder, *parts = SOURCE, *name.split(".")
    for part in parts:
        if (folder / f"{part}.py").exists():
            return True
        if not (folder / part).is_dir():
            return re.search(rf"\b{part}\b", text_of(folder / "__init__.py")) is not None
        folder = folder / part
    return True


def test_every_file_and_module_that_the_documents_name_is_there():
    """Decisions are left out: they may name what was there."""
    files = [f"/{path.relative_to(ROOT).as_posix()}" for top in CODE for path in (ROOT / top).rglob("*.py")]
    gone = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf8")
        named = set(re.findall(r"(?<![\w/<>*{}.-])(?:\.\./)?((?:\w+/)*\w+\.py)\b", text))
        gone += [f"{page.name}: {each}" for each in named if not any(f.endswith(f"/{each}") for f in files)]
        dotted_names = set(re.findall(r"(?<![\w./])ringrift(?!\.toml)(?:\.[a-z_]\w*)+", text))
        gone += [f"{page.name}: {each}" for each in dotted_names if not is_module(each)]
    assert gone == []


def test_the_readme_links_every_document():
    readme = (ROOT / "README.md").read_text(encoding="utf8")
    missing = [page.name for page in (ROOT / "docs").glob("*.md") if f"docs/{page.name}" not in readme]
    assert missing == []


def test_a_release_of_the_changelog_has_each_section_once():
    for release in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]:
        sections = [line for line in release.splitlines() if line.startswith("### ")]
        assert len(sections) == len(set(sections)), release.splitlines()[0]
