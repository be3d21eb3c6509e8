"""Results as tables for a terminal."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from eagle3_jax.engine import KVScales
from serve.bench.accept import AcceptRow
from serve.bench.choice import ChoiceRecord
from serve.bench.conditions import Conditions
from serve.bench.convert import ConvertRecord
from serve.bench.drafts import DraftsRecord
from serve.bench.equal import CaseResult, EqualResult, describe
from serve.bench.kv_cache import CacheRecord
from serve.bench.soak import SoakRecord
from serve.bench.spread import Spread
from serve.bench.structured import StructuredRecord


def print_conditions(console: Console, found: Conditions, repetitions: int | None = None) -> None:
    """Where and when, in two lines."""
    core = "not pinned" if found.pinned_core is None else f"pinned to core {found.pinned_core}"
    repeated = f", median of {repetitions}" if repetitions else ""
    console.print(f"{found.cpu}, {found.cores} cores, {core}, load {found.load_average}{repeated}")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    console.print(f"{found.date}, Python {found.python}, {versions}")


def print_accept(console: Console, rows: Sequence[AcceptRow], title: str) -> None:
    """Accept length by category."""
    table = titled(title)
    headings = ["category", "prompts", "tokens", "rounds", "accept length"]
    headings += [f"position {i + 1}" for i in range(len(rows[0].per_position))]
    for heading in [*headings, "rounds by accepted", "distinct bigrams", "answers right"]:
        table.add_column(heading, justify="left" if heading == "category" else "right")
    for row in rows:
        shares = (f"{share:.2f}" for share in row.per_position)
        counts = (f"{row.prompts}", f"{row.tokens}", f"{row.counts.drafts}")
        length = f"{row.accept_length:.2f}"
        rounds = "/".join(map(str, row.histogram)) or "-"
        said = (_known(row.distinct_bigrams, ".2f"), _known(row.right, ".0%"))
        table.add_row(row.category, *counts, length, *shares, rounds, *said)
    console.print(table)


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def print_drafts(console: Console, result: DraftsRecord) -> None:
    """Accept length of every draft by category, and whether its answers are plain decoding's."""
    table = titled(f"Drafts, {result.prompts} held-out prompts, k={result.num_speculative_tokens}")
    categories = [row.category for row in result.drafts[0].rows]
    headings = ("draft", "form", "MB", *categories, "identical", "tie", "different")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("draft", "form") else "right")
    for draft in result.drafts:
        lengths = (f"{row.accept_length:.2f}" for row in draft.rows)
        answers = (f"{draft.identical}", f"{draft.ties}", f"{draft.different}")
        size = f"{draft.nbytes / 1e6:.2f}"
        table.add_row(draft.name, draft.form, size, *lengths, *answers)
    console.print(table)
    for draft in result.drafts:
        for difference in draft.differences:
            console.print(f"  {describe(difference)}")


def print_caches(console: Console, result: CacheRecord) -> None:
    """Accept length and accuracy of every KV cache."""
    sizes = f"{result.prompts} held-out prompts, greedy, k={result.num_speculative_tokens}"
    scale = result.kv_cache_scale
    if isinstance(scale, KVScales):
        each = (*scale.target, *scale.draft)
        factors = f"{len(each)} factors {min(each):.2g} to {max(each):.2g}"
    else:
        factors = f"factor {scale:g}"
    table = titled(f"KV caches, {sizes}, fp8 with {factors}")
    headings = ("cache", "accept length", "right", "same answers", "nats a token", "moved by")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "cache" else "right")
    for cache in result.caches:
        table.add_row(
            cache.kv_cache_dtype,
            f"{cache.overall.accept_length:.3f}",
            f"{cache.overall.right:.1%}",
            f"{cache.same_answers:.1%}",
            f"{cache.loss:.5f}",
            f"{cache.moved:.5f}",
        )
    console.print(table)


def print_case(console: Console, case: CaseResult) -> None:
    """One line as a case ends."""
    role = "reference" if case.reference else f"{case.identical} of {case.compared} equal"
    preempted = f", {case.preemptions} preemptions" if case.preemptions else ""
    console.print(f"{case.name}: {role}{preempted} ({case.tokens} tokens, {case.seconds:.0f} s)")
    for difference in case.differences:
        console.print(f"  {describe(difference)}")


def print_equal(console: Console, result: EqualResult) -> None:
    """The sum, and every failure."""
    console.print(
        f"{result.prompts} prompts x {len(result.settings)} settings: {result.identical} of "
        f"{result.compared} answers identical, {result.ties} differ by a tie, "
        f"{len(result.failures)} failures"
    )
    for failure in result.failures:
        console.print(f"FAILED {failure}")


def titled(title: str) -> Table:
    """An empty table."""
    return Table(title=title, title_justify="left", title_style="bold")


def milliseconds(spread: Spread) -> str:
    """Median and best."""
    return f"{spread.median * 1e3:.2f} (best {spread.best * 1e3:.2f})"


def print_soak(console: Console, result: SoakRecord) -> None:
    """What the traffic was and what it left behind."""
    outcomes = ", ".join(f"{count} {kind}" for kind, count in sorted(result.outcomes.items()))
    console.print(f"{result.seconds:.0f} s, {result.concurrency} clients: {outcomes}")
    left = ", ".join(f"{name} {value:g}" for name, value in result.gauges.items())
    console.print(f"{result.preemptions} preemptions; afterwards {left}")
    first, last = result.memory_mib[0], result.memory_mib[-1]
    console.print(
        f"memory {first:.0f} MiB at the start, {last:.0f} at the end, "
        f"{100 * result.memory_growth:+.1f}% over the settled part"
    )
    console.print("nothing leaked" if result.holds else "SOMETHING LEAKED OR FAILED")


def print_choice(console: Console, result: ChoiceRecord) -> None:
    """Tokens a second of all sides at every load, and what follows from them."""
    table = titled(f"Tokens/s of all clients, greedy, k up to {result.num_speculative_tokens}")
    names = list(result.loads[0].tokens_per_s)
    headings = ("adaptive : best", "noise", "k = 0 : no draft", "mean k", "different")
    for heading in ("clients", *names, *headings):
        table.add_column(heading, justify="right")
    for load in result.loads:
        speeds = (f"{load.tokens_per_s[name].median:.0f}" for name in names)
        ratios = (f"{load.share:.3f}", f"{load.noise:.3f}", f"{load.plain_share:.3f}")
        used = f"{load.mean_k:.2f}"
        table.add_row(f"{load.concurrency}", *speeds, *ratios, used, f"{load.different}")
    console.print(table)
    console.print(
        "adaptive reaches 0.97 of the better of k = 0 and fixed, noise aside, at every load"
        if result.holds
        else "ADAPTIVE IS BELOW 0.97 OF THE BETTER OF k = 0 AND FIXED"
    )


def print_grammar(console: Console, result: StructuredRecord) -> None:
    """How many answers are right, and the cost of a schema for those beside it."""
    k, count = result.num_speculative_tokens, result.generations
    console.print(
        f"{count} generations by schema, temperature {result.temperature:g}, k={k}: "
        f"{result.valid} valid, {result.identical} identical to plain decoding; accept length "
        f"{result.accept_length:.2f}, masks of a round {result.mask_s * 1e6:.0f} us a request"
    )
    table = titled("Seven requests without options beside an eighth")
    for heading in ("the eighth has", "ms until the seven are done", "ratio"):
        table.add_column(heading, justify="left" if heading == "the eighth has" else "right")
    for case in result.neighbours:
        table.add_row(case.eighth, milliseconds(case.seconds), f"{case.ratio:.2f}")
    console.print(table)


def print_convert(console: Console, result: ConvertRecord) -> None:
    """Speed, memory and what became of the run that was killed."""
    copy, conversion = (
        ", ".join(f"{rate:.0f}" for rate in rates)
        for rates in (result.copy_mib_s, result.convert_mib_s)
    )
    console.print(f"{result.source_mib:.0f} MiB of INT4 in {result.items} items")
    console.print(f"copy {copy} MiB/s, conversion {conversion} MiB/s: ratio {result.ratio:.2f}")
    peak, largest = max(result.peak_mib), result.largest_item_mib
    console.print(f"peak memory {peak:.0f} MiB, largest item {largest:.0f} MiB")
    killed = ", ".join(map(str, result.killed_at))
    equal = "equal" if result.resumed_equal else "DIFFERENT"
    read_back = "read back as written" if result.sound else "NOT READ BACK AS WRITTEN"
    console.print(f"killed with {killed} items on disk: manifests {equal}, {read_back}")
