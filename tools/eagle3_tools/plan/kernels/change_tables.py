"""`eagle3-plan --kernels --before FOLDER`: tables that compare two records of compiled code."""

from pathlib import Path

from rich.console import Console

from eagle3_tools.kernel_model.gpus import BY_ARCH
from eagle3_tools.kernel_model.record import recorded
from eagle3_tools.plan.kernels.changes import FIGURES, case_changes, round_changes
from serve.text_table import text_table

_HEADINGS = {
    "in flight KiB": "in flight\nKiB",
    "loads B a lane": "loads\nB a lane",
    "registers": "regis-\nters",
    "LDS KiB": "LDS\nKiB",
}


def print_changes(console: Console, only: str, before: Path) -> None:
    """Print cases and rounds of both records. Raises FileNotFoundError without an older one."""
    archs = [arch for arch in BY_ARCH if recorded(arch, before)]
    if not archs:
        raise FileNotFoundError(
            f"{before} has no record: expected one of {', '.join(BY_ARCH)}.json"
        )
    console.print("Model, not measured: before -> after, one figure where nothing changed.")
    headings = ("case", *(_HEADINGS.get(figure, figure) for figure in FIGURES))
    for gpu in (BY_ARCH[arch] for arch in archs):
        if rows := list(case_changes(gpu, before, only)):
            table = text_table(f"Cases on {gpu.name}", headings, left=("case",))
            for row in rows:
                table.add_row(*row)
            console.print(table)
    title = "A round of k = 3 at 8,704 slots: ms of its kernels alone, and their share of the floor"
    table = text_table(title, ("", "ms", "share"), left=("",))
    for row in round_changes(before):
        table.add_row(*row)
    console.print(table)
