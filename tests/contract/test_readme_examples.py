"""The Python blocks of our own README run as printed, one after the other, with `await` at the top level."""

import ast
import inspect
from pathlib import Path

from ringrift.coordination.event_router import get_router
from ringrift.engine.opening import close_engine

README = Path(__file__).parents[2] / "README.md"


def python_blocks(text):
    found, inside = [], None
    for line in text.splitlines():
        if line == "```python":
            inside = []
        elif line.startswith("```") and inside is not None:
            found.append("\n".join(inside))
            inside = None
        elif inside is not None:
            inside.append(line)
    return found


async def run_block(code, names):
    compiled = compile(code, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.isawaitable(result):
        await result


async def test_the_examples_of_the_readme_run_as_printed(capsys):
    blocks = python_blocks(README.read_text(encoding="utf8"))
    assert len(blocks) >= 2
    names = {"__name__": "readme"}
    for block in blocks:
        await run_block(block, names)
    assert "hex8_2p is trained" in capsys.readouterr().out
    assert (await names["queue"].get(names["claim"].id)).result == {"games": 50}
    await get_router().stop()
    await close_engine()
