"""What a run cost so far, drawn for a terminal."""

from __future__ import annotations

from rich.console import RenderableType
from rich.table import Table

from ringrift.cli.wording import effort, money
from ringrift.learning.run_status import CostRow, RunStatus, cost_rows

WIDE = 110


def draw_cost(status: RunStatus, *, width: int) -> RenderableType:
    """CPU, GPU and money for each config, without a GPU that was not used and a price that is not set."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2 if width >= WIDE else 1))
    table.add_column("cost", no_wrap=True)
    table.add_column("", no_wrap=True)
    told = {key: cost_rows(config.cost) for key, config in status.configs.items()}
    for row in next(iter(told.values()), ()):
        table.add_column(row.what, justify="right", no_wrap=True)
    for key, rows in told.items():
        for number, (unit, cells) in enumerate(_cells(rows)):
            table.add_row("" if number else key, unit, *cells)
    return table


def _cells(rows: tuple[CostRow, ...]) -> list[tuple[str, list[str]]]:
    found = [("CPU", [effort(row.cpu_s) for row in rows])]
    if rows[0].gpu_s:
        found.append(("GPU", [effort(row.gpu_s) for row in rows]))
    if rows[0].money is not None:
        found.append(("money", [money(row.money) for row in rows]))
    return found
