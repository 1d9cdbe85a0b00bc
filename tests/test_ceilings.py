"""The source gets no larger and no more scattered than it is: see `tests/data/ceilings.toml`."""

import ast

import size_ceilings
from size_ceilings import (
    CEILINGS,
    comments_in,
    complaints,
    equal_code,
    givers_in,
    lines_by_folder,
    loose_tasks_in,
    lowered,
    measured,
    process_getters_in,
    read_ceilings,
    rendered,
    slack,
)

TABLE = {
    "modules": 100,
    "loose_tasks": 3,
    "rooms": {"engine": {"folders": ["engine"], "lines": 1_000}},
    "folders": {"ringrift/data": 40, "ringrift/work": 20},
    "floors": {"comments_per_100_lines": 3.2},
}


def table(*, lines=1_000, folders=None, comments=3.2, **counts):
    rooms = {"engine": {"folders": ["engine"], "lines": lines}}
    floors = {"comments_per_100_lines": comments}
    return {**TABLE, **counts, "rooms": rooms, "folders": folders or TABLE["folders"], "floors": floors}


def test_the_source_is_within_its_ceilings():
    ceilings = read_ceilings()
    wrong = complaints(ceilings, measured(ceilings))
    assert not wrong, "\n".join(wrong)


def test_every_folder_belongs_to_one_room():
    listed = [folder for row in read_ceilings()["rooms"].values() for folder in row["folders"]]
    assert sorted(listed) == sorted(lines_by_folder())


def test_the_table_is_as_the_command_writes_it():
    assert CEILINGS.read_text(encoding="utf8") == rendered(read_ceilings())


def test_what_grows_is_refused():
    grown = table(
        lines=1_001, modules=101, folders={"ringrift/data": 41, "ringrift/work": 20, "ringrift/web": 17}
    )
    assert complaints(TABLE, grown) == [
        "lines of engine: 1001, 1 above its ceiling of 1000",
        "modules: 101, 1 above its ceiling of 100",
        "modules in ringrift/data: 41, 1 above its ceiling of 40",
        "modules in ringrift/web: 17, 1 above its ceiling of 16",
    ]


def test_a_ceiling_far_above_has_to_follow():
    assert complaints(TABLE, table(lines=900, modules=97)) == []
    shrunk = complaints(TABLE, table(lines=899, modules=96, folders={"ringrift/data": 36}))
    assert [line.split(";")[0] for line in shrunk] == [
        "lines of engine: 899, well below its ceiling of 1000",
        "modules: 96, well below its ceiling of 100",
        "modules in ringrift/data: 36, well below its ceiling of 40",
        "modules in ringrift/work: no more than 16",
    ]
    assert slack("lines of data", 20_000) == 400


def test_lowering_takes_the_smaller_number_and_raises_none():
    found = table(lines=900, modules=150, folders={"ringrift/data": 39, "ringrift/web": 30})
    assert lowered(TABLE, found) == table(lines=900, folders={"ringrift/data": 39})


def test_the_comments_get_no_fewer():
    assert complaints(TABLE, table(comments=3.1)) == ["comments_per_100_lines: 3.1, below its floor of 3.2"]
    assert complaints(TABLE, table(comments=3.3)) == []
    (told,) = complaints(TABLE, table(comments=3.4))
    assert told.startswith("comments_per_100_lines: 3.4, well above its floor of 3.2; run ")
    assert lowered(TABLE, table(comments=3.4)) == table(comments=3.4)
    assert lowered(TABLE, table(comments=3.1)) == TABLE


def test_a_comment_is_one_only_outside_of_a_text():
    assert comments_in('x = "# no"  # one\n# two\n""" # no """\n') == 2


def test_a_task_outside_of_a_group_is_seen():
    text = """
async def one(lanes: asyncio.TaskGroup):
    lanes.create_task(a())
    async with asyncio.TaskGroup() as group:
        group.create_task(a())
    asyncio.create_task(a())
    loop.create_task(a())
    asyncio.ensure_future(a())
"""
    assert list(loose_tasks_in(ast.parse(text))) == [6, 7, 8]


def test_a_task_of_an_owner_is_not_loose():
    text = """
class Daemon:
    def __init__(self, helpers: TaskOwner, others: Owner) -> None:
        self._tasks = TaskOwner("one")
        self._later: TaskOwner | None = None
        self._others = others

    def start(self, helpers: TaskOwner) -> None:
        self._tasks.create_task(a())
        self._later.create_task(a())
        helpers.create_task(a())
        self._others.create_task(a())
        create_task(a())
"""
    assert list(loose_tasks_in(ast.parse(text))) == [12, 13]


def test_a_getter_of_what_the_process_shares_is_seen():
    text = """
def get_router():
    return process_scope().get(Router, Router)

def get_queue(path=None):
    return Queue.get_instance(path)

def get_name(event):
    return event.name

def _kept():
    return process_scope().get(Table, Table)


get_table = getter_of("get_table", Table)
reset_table = reset_of("reset_table", Table)
"""
    assert list(process_getters_in(ast.parse(text))) == ["get_router", "get_queue", "get_table"]


def test_a_getter_that_goes_through_another_function_is_seen():
    text = """
def shared_engine():
    return process_scope().get(SharedEngine, SharedEngine)

async def get_engine():
    shared = shared_engine()
    return await to_thread(shared.get)

def get_name(engine):
    return engine.name
"""
    tree = ast.parse(text)
    assert list(process_getters_in(tree, by=givers_in(tree))) == ["get_engine"]
    assert size_ceilings.process_getters() == [
        "ringrift/engine/opening.py:get_engine",
        "ringrift/engine/opening.py:get_engine_blocking",
    ]


def test_equal_code_is_found_wherever_it_is_indented():
    shared = [f"total += weigh({n})" for n in range(13)]
    one = "import os\n\n" + "\n".join(shared)
    other = "def f():\n    total = 0\n" + "\n\n".join(f"    {line}  " for line in shared)
    assert equal_code({"a.py": one, "b.py": other}) == ["a.py:3 and b.py:3, 13 lines"]
    assert equal_code({"a.py": one, "b.py": other.replace("(12)", "(99)")}) == []


if __name__ == "__main__":
    before = read_ceilings()
    now = lowered(before, measured(before))
    CEILINGS.write_text(rendered(now), encoding="utf8")
    for complaint in complaints(now, measured(now)):
        print(complaint)
    was = size_ceilings.flat(before)
    for name, value in size_ceilings.flat(now).items():
        if value != was[name]:
            print(f"{name}: {was[name]} -> {value}")
