"""How large the source is, in the numbers that `tests/data/ceilings.toml` holds down.

Each number has a ceiling that only goes down, so that the tree gets no larger and no more scattered unseen;
one has a floor that only goes up.
"""

import ast
import tokenize
import tomllib
from collections import Counter
from itertools import combinations
from pathlib import Path

from source_tree import SOURCE, is_generated, modules, parsed, text_of

CEILINGS = Path(__file__).with_name("data") / "ceilings.toml"
COMMAND = "python tests/test_ceilings.py"
TOP_LEVEL = "."
FOLDER_MODULES_MAX = 16
WAYS_TO_SHARE = ("process_scope()", "one_per_process(", ".get_instance(")  # an object with the whole process
EQUAL_LINES_MAX = 12
TASK_OWNER = SOURCE / "ringrift" / "task_owner.py"  # the one place that may start a task by itself
FLOOR_SLACK = 0.1  # how far above its floor a number may be before the floor has to follow
HEADER = f"""\
# The size of the source: ceilings that only go down, and a floor that only goes up. `{COMMAND}`
# has them follow the tree, and never the other way. What a new capability needs is added by hand, and the
# commit says why.
"""


# --- what is measured -----------------------------------------------------------------------------------


def room_folder(path):
    """The folder that a module's lines count for: a room of `ringrift`, its top level, or `app`."""
    parts = path.relative_to(SOURCE).parts
    if parts[0] != "ringrift":
        return parts[0]
    return parts[1] if len(parts) > 2 else TOP_LEVEL


def lines_by_folder():
    lines = Counter()
    for path in modules():
        lines[room_folder(path)] += text_of(path).count("\n")
    return dict(lines)


def modules_by_folder():
    """How many modules lie directly in each folder, for those with more than a reader can take in."""
    counts = Counter(path.parent.relative_to(SOURCE).as_posix() for path in modules())
    return {folder: count for folder, count in sorted(counts.items()) if count > FOLDER_MODULES_MAX}


def importers():
    """Every module, with the modules that import it."""
    names = {dotted(path): path for path in modules()}
    found = {name: set() for name in names}
    for name, path in names.items():
        for target in imported(ast.walk(parsed(text_of(path))), names.keys()):
            if target in found:
                found[target].add(name)
    return found


def single_importer_modules():
    """Modules that exactly one other imports: fragments, which mostly belong inside it."""
    packages = {dotted(path) for path in modules() if path.name == "__init__.py"}
    return sorted(name for name, by in importers().items() if len(by) == 1 and name not in packages)


def dotted(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(nodes, known):
    """What import statements load, as far as it is one of the *known* modules or named by them."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if inner in known else node.module


def loose_tasks():
    """Tasks that no task group waits for and no `TaskOwner` has: nobody sees their errors by itself."""
    return [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in modules()
        if path != TASK_OWNER
        if "create_task" in text_of(path) or "ensure_future" in text_of(path)
        for line in loose_tasks_in(parsed(text_of(path)))
    ]


def loose_tasks_in(tree):
    groups = {*_task_groups(tree), *_task_owners(tree)} - {""}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        owner, _, called = ast.unparse(node.func).rpartition(".")
        if called == "ensure_future" or (called == "create_task" and owner not in groups):
            yield node.lineno


def _task_groups(tree):
    """What is a task group here: bound by `async with`, or an argument declared as one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem) and "TaskGroup(" in ast.unparse(node.context_expr):
            yield ast.unparse(node.optional_vars) if node.optional_vars else ""
        elif isinstance(node, ast.arg) and node.annotation:
            yield node.arg if ast.unparse(node.annotation).endswith("TaskGroup") else ""


def _task_owners(tree):
    """What is a task owner here: declared as one, or made here."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TaskOwner("):
            yield from (ast.unparse(target) for target in node.targets)
        elif isinstance(node, ast.AnnAssign) and _is_owner(node.annotation):
            yield ast.unparse(node.target)
        elif isinstance(node, ast.arg) and node.annotation and _is_owner(node.annotation):
            yield node.arg


def _is_owner(annotation):
    return ast.unparse(annotation) in ("TaskOwner", "TaskOwner | None")


def process_getters():
    """Functions outside `coordination/` that give an object which the whole process shares.

    What is below is to be handed such an object by whoever builds it; programs ask `coordination/`. The two
    that are left, `get_engine` and `get_engine_blocking` of `engine/opening.py`, open the store on which all
    else of a process stands: workers, the page, the event log, requests and every command begin with it, and
    who is handed another engine does not ask for it.
    """
    return [
        f"{path.relative_to(SOURCE)}:{name}"
        for path in modules()
        if room_folder(path) not in ("coordination", "app")
        for tree in (parsed(text_of(path)),)
        for name in process_getters_in(tree, by=givers_in(tree))
    ]


def givers_in(tree):
    """The calls of functions of the same module that return such an object, whatever they are called."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = [ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.Return)]
            if any(way in each for each in given for way in WAYS_TO_SHARE):
                yield f"{node.name}("


def process_getters_in(tree, *, by=()):
    """Getters that share an object themselves, or *by* a call of somebody else who does."""
    ways = (*WAYS_TO_SHARE, *by)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("get_"):
            body = "\n".join(map(ast.unparse, node.body))
            if any(way in body for way in ways):
                yield node.name
        elif isinstance(node, ast.Assign) and "getter_of(" in ast.unparse(node.value):
            yield from (ast.unparse(target) for target in node.targets)


def equal_code(texts=None):
    """Pairs of places with more than EQUAL_LINES_MAX equal lines of code, each as "a:1 and b:9, 20 lines".

    Indentation, blank lines, comments and imports do not count; generated files are left out.
    """
    if texts is None:
        texts = {path.relative_to(SOURCE).as_posix(): text_of(path) for path in modules()}
    code = {name: _code_lines(text) for name, text in texts.items() if not is_generated(text)}
    places = {}
    for name, lines in code.items():
        hashes = [hash(line) for _, line in lines]
        for start in range(len(hashes) - EQUAL_LINES_MAX):
            places.setdefault(tuple(hashes[start : start + EQUAL_LINES_MAX + 1]), []).append((name, start))
    pairs = {pair for same in places.values() for pair in combinations(same, 2)}
    found = []
    for one, other in sorted(pairs):
        if ((one[0], one[1] - 1), (other[0], other[1] - 1)) in pairs:
            continue  # the middle of a longer one
        length = EQUAL_LINES_MAX
        while (
            (one[0], one[1] + length - EQUAL_LINES_MAX),
            (other[0], other[1] + length - EQUAL_LINES_MAX),
        ) in pairs:
            length += 1
        first, second = (f"{name}:{code[name][start][0]}" for name, start in (one, other))
        found.append(f"{first} and {second}, {length} lines")
    return found


def _code_lines(text):
    imports = set()
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= set(range(node.lineno, node.end_lineno + 1))
    numbered = ((number, line.strip()) for number, line in enumerate(text.splitlines(), 1))
    return [
        (number, line)
        for number, line in numbered
        if line and not line.startswith("#") and number not in imports
    ]


def comments_per_100_lines():
    """How much of the source says why, as far as comments do: rounded down, so that the floor holds."""
    lines = sum(text_of(path).count("\n") for path in modules())
    return 1_000 * sum(comments_in(text_of(path)) for path in modules()) // lines / 10


def comments_in(text):
    tokens = tokenize.generate_tokens(iter(text.splitlines(keepends=True)).__next__)
    return sum(token.type == tokenize.COMMENT for token in tokens)


# --- the table ------------------------------------------------------------------------------------------


def read_ceilings():
    return tomllib.loads(CEILINGS.read_text(encoding="utf8"))


def measured(ceilings):
    """The same table with today's numbers."""
    lines = lines_by_folder()
    return {
        "modules": len(modules()),
        "single_importer_modules": len(single_importer_modules()),
        "loose_tasks": len(loose_tasks()),
        "process_getters": len(process_getters()),
        "equal_code": len(equal_code()),
        "rooms": {
            room: {"folders": row["folders"], "lines": sum(lines.get(folder, 0) for folder in row["folders"])}
            for room, row in ceilings["rooms"].items()
        },
        "folders": modules_by_folder(),
        "floors": {"comments_per_100_lines": comments_per_100_lines()},
    }


def flat(table):
    """One number for each line of the table, by what it is called in a complaint."""
    numbers = {name: value for name, value in table.items() if isinstance(value, int)}
    numbers |= {f"lines of {room}": row["lines"] for room, row in table["rooms"].items()}
    return numbers | {f"modules in {folder}": count for folder, count in table["folders"].items()}


def slack(name, ceiling):
    """How far below its ceiling a number may be before the ceiling has to follow."""
    return max(ceiling // 50, 100 if name.startswith("lines of ") else 3)


def complaints(ceilings, today):
    """What is above its ceiling, and which ceiling has to come down."""
    allowed, found = flat(ceilings), flat(today)
    wrong = []
    for name in sorted(allowed.keys() | found.keys()):
        listed = name in allowed
        ceiling, number = allowed.get(name, FOLDER_MODULES_MAX), found.get(name, 0)
        if number > ceiling:
            wrong.append(f"{name}: {number}, {number - ceiling} above its ceiling of {ceiling}")
        elif listed and name not in found:
            wrong.append(f"{name}: no more than {FOLDER_MODULES_MAX}; run `{COMMAND}`")
        elif number < ceiling - slack(name, ceiling):
            wrong.append(f"{name}: {number}, well below its ceiling of {ceiling}; run `{COMMAND}`")
    for name, floor in ceilings["floors"].items():
        number = today["floors"][name]
        if number < floor:
            wrong.append(f"{name}: {number}, below its floor of {floor}")
        elif number > floor + FLOOR_SLACK + 1e-9:
            wrong.append(f"{name}: {number}, well above its floor of {floor}; run `{COMMAND}`")
    return wrong


def lowered(ceilings, today):
    """The table with every ceiling that the tree has fallen below, and every floor that it is above."""
    counts = {name: min(value, today[name]) for name, value in ceilings.items() if isinstance(value, int)}
    rooms = {
        room: {**row, "lines": min(row["lines"], today["rooms"][room]["lines"])}
        for room, row in ceilings["rooms"].items()
    }
    folders = {
        folder: min(count, today["folders"][folder])
        for folder, count in sorted(ceilings["folders"].items())
        if folder in today["folders"]
    }
    floors = {name: max(floor, today["floors"][name]) for name, floor in ceilings["floors"].items()}
    return {**counts, "rooms": rooms, "folders": folders, "floors": floors}


def rendered(table):
    """The table as TOML."""
    rows = [HEADER]
    rows += [f"{name} = {value}" for name, value in table.items() if isinstance(value, int)]
    for room, row in table["rooms"].items():
        folders = ", ".join(f'"{folder}"' for folder in row["folders"])
        rows += [f'\n[rooms."{room}"]', f"folders = [{folders}]", f"lines = {row['lines']}"]
    rows += [f"\n# Folders with more than {FOLDER_MODULES_MAX} modules.", "[folders]"]
    rows += [f'"{folder}" = {count}' for folder, count in table["folders"].items()]
    rows += ["\n# What only goes up.", "[floors]"]
    rows += [f"{name} = {floor}" for name, floor in table["floors"].items()]
    return "\n".join(rows) + "\n"
