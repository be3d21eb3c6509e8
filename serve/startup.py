"""Reports startup progress on a terminal, as plain lines, or as log records."""

import logging

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from eagle3_jax.engine import EngineConfig
from serve.options.serve_options import UNMEASURED
from serve.pair.notices import Notify

logger = logging.getLogger(__name__)


def counting_bar(console: Console, told: str, *, disable: bool = False) -> Progress:
    """Return a progress bar (done of total) with one more column. It is erased when it ends."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(told),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        # Do not redirect standard output: it may be a file while this console is a terminal.
        redirect_stdout=False,
        disable=disable,
    )


class StartupReport:
    """Reports progress on a console: loading, compiling n of m programs, ready."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = counting_bar(console, "programs")
        self._task = self._progress.add_task("compiling", total=None)

    def notify(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def on_compiled(self, program: str, done: int, total: int) -> None:
        """Show that `done` of `total` programs are compiled and `program` is next. Thread-safe."""
        if not self._console.is_terminal:
            self.notify(f"compiled {done}/{total} programs")
            return
        if not self._progress.finished:
            self._progress.start()
        self._progress.update(self._task, completed=done, total=total)
        if done == total:
            self._progress.stop()


class LoggedStartup:
    """Reports the same progress as log records, for programs that read the log."""

    def notify(self, text: str) -> None:
        logger.info(text)

    def on_compiled(self, program: str, done: int, total: int) -> None:
        """Log that `done` of `total` programs are compiled and `program` is next. Thread-safe."""
        fields = {"program": program, "done": done, "total": total}
        logger.info("compiled", extra={"fields": fields})


def describe_engine(config: EngineConfig) -> str:
    """Describe the limits of an engine in one line."""
    tokens = (config.pool_pages - 1) * config.page_tokens
    counts = config.draft_counts
    k = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]}..{counts[-1]}"
    method = config.rejection_sample_method
    how = "" if method == "coupled" else f" ({method})"
    if tree := config.method.tree:
        how = f" levels of a tree (topk {tree.topk}, {tree.num_draft_tokens} nodes verified)"
    if lookup := config.method.lookup:
        how += (
            f", up to {config.num_lookup_tokens} tokens looked up after {lookup.shortest}.."
            f"{lookup.longest} equal ones"
        )
    replicas = config.data_parallel_size
    of_each = f"{replicas} replicas, each: " if replicas > 1 else ""
    return of_each + (
        f"context {config.max_model_len} tokens, {config.max_num_seqs} requests at a time, "
        f"k = {k}{how}, KV cache size: {tokens} tokens"
        + ("" if config.kv_cache_dtype == "auto" else f" in {config.kv_cache_dtype}")
    )


def notify_of_cautions(config: EngineConfig, notify: Notify) -> None:
    """Report options that make answers differ from those of the model."""
    if config.kv_cache_scale == float(UNMEASURED):
        notify(
            "KV cache: factor 1 for all pools, so that values beyond 448 saturate; "
            "eagle3-bench accept --measure-kv-scales finds better ones"
        )
    if (length := config.method.synthetic_acceptance_length) is not None:
        notify(f"synthetic acceptance, {length:g} tokens a round: answers are not the model's")
