"""Accept length of every method and way to draft, on the same prompts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.table import Table

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.speculative.method import DRAFT_SAMPLE_METHODS, METHODS
from eagle3_tools.bench.acceptance.answerers import held_out_tables
from eagle3_tools.bench.acceptance.tasks import Task
from eagle3_tools.bench.common.accept_length import AcceptRow
from serve.pair.loading import LoadedPair
from serve.text_table import text_table

COMPARED = tuple(method for method in METHODS if method != "synthetic")
TEMPERATURES = (0.6, 1.0)


@dataclass(frozen=True)
class MethodRow:
    """Accept length over all prompts at one temperature, and the category rows behind it."""

    method: str
    drafts: str
    temperature: float
    accept_length: float
    categories: list[AcceptRow]


def compare_methods(
    pair: LoadedPair,
    tasks: Sequence[Task],
    config: EngineConfig,
    max_model_len: int | None,
) -> Iterator[MethodRow]:
    """Yield a row for each method, way to draft and temperature."""
    for method in COMPARED:
        for drafts in DRAFT_SAMPLE_METHODS:
            changed = replace(config, rejection_sample_method=method, draft_sample_method=drafts)
            tables = held_out_tables(pair, tasks, changed, TEMPERATURES, max_model_len)
            for temperature, (*categories, overall) in zip(TEMPERATURES, tables, strict=True):
                yield MethodRow(method, drafts, temperature, overall.accept_length, categories)


def methods_table(title: str, rows: Sequence[MethodRow]) -> Table:
    """Return accept lengths by method and drafts, with a column for each temperature."""
    headings = [f"{temperature:g}" for temperature in TEMPERATURES]
    table = text_table(title, ["method", "drafts", *headings], left=("method", "drafts"))
    for start in range(0, len(rows), len(TEMPERATURES)):
        same = rows[start : start + len(TEMPERATURES)]
        lengths = (f"{row.accept_length:.3f}" for row in same)
        table.add_row(same[0].method, same[0].drafts, *lengths)
    return table
