"""Plain decoding and rounds of the CPU as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Console

from serve.bench.equal import describe
from serve.bench.plain import PlainResult, Side
from serve.bench.rounds import RoundResult
from serve.bench.tables import milliseconds, titled


def print_plain(console: Console, results: Sequence[PlainResult]) -> None:
    """Plain decoding beside transformers, and the byte floor."""
    table = titled("Plain decoding, greedy, random 108 M-parameter Kimi, float32, one thread")
    for heading in ("", "engine", "transformers", "ratio (median)", "ratio (best)"):
        table.add_column(heading, justify="right" if heading else "left")
    for result in results:
        for cells in _plain_rows(result):
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    for result in results:
        print_floor(console, result)


def _plain_rows(result: PlainResult) -> list[tuple[str, ...]]:
    ours, theirs, batch = result.engine, result.transformers, result.batch
    whole = f"whole run of {result.new_tokens.long} tokens"
    return [
        (f"batch {batch}: ms a step", _step(ours), _step(theirs), "", ""),
        (
            "tokens/s, prefill excluded",
            f"{result.engine_tokens_per_s:.1f}",
            f"{result.transformers_tokens_per_s:.1f}",
            f"{result.ratio_median:.2f}x",
            f"{result.ratio_best:.2f}x",
        ),
        (
            f"tokens/s, {whole}",
            f"{batch * result.new_tokens.long / ours.end_to_end_s.median:.1f}",
            f"{batch * result.new_tokens.long / theirs.end_to_end_s.median:.1f}",
            f"{result.ratio_end_to_end:.2f}x",
            "",
        ),
    ]


def print_floor(console: Console, result: PlainResult) -> None:
    """What a step must read, how long that takes, and whether both sides agree."""
    floor, speed = result.floor, result.bandwidth
    console.print(
        f"batch {result.batch}: a step reads {floor.weight_bytes / 1e6:.1f} MB of weights "
        f"({floor.distinct_experts:.1f} distinct experts a layer) and "
        f"{floor.kv_bytes / 1e6:.2f} MB of cache; one thread reads "
        f"{speed.median / 1e9:.1f} GB/s (best {speed.best / 1e9:.1f}): "
        f"{floor.seconds(speed.median) * 1e3:.2f} ms at least, "
        f"{result.floor_share_median:.0%} of the floor reached (best {result.floor_share_best:.0%})"
    )
    console.print(
        f"batch {result.batch}: {result.identical} of {result.batch} sequences of "
        f"{result.new_tokens.long} tokens equal"
    )
    for difference in result.differences:
        console.print(f"  {describe(difference)}")


def print_rounds(console: Console, results: Sequence[RoundResult]) -> None:
    """Phases, prediction and host share of every k and batch."""
    table = titled("The speculative round of the pair, greedy, ms a round (median)")
    headings = ("k", "batch", "decode", "draft alone", "verify alone", "in turn", "one program")
    headings += (
        "engine",
        "of prediction",
        "of alone",
        "host",
        "accept length",
        "break-even",
        "speedup",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_round_cells(result))
    console.print(table)
    console.print(verdict(results))


def _round_cells(result: RoundResult) -> tuple[str, ...]:
    times, plain = result.times, result.plain
    assert times.phases and times.propose and times.verify, "a speculative round has phases"
    return (
        f"{result.num_speculative_tokens}",
        f"{result.batch}",
        f"{plain.fused.median * 1e3:.2f}",
        f"{times.propose.median * 1e3:.2f}",
        f"{times.verify.median * 1e3:.2f}",
        f"{times.phases.median * 1e3:.2f}",
        f"{times.fused.median * 1e3:.2f}",
        f"{times.engine.median * 1e3:.2f}",
        f"{result.prediction_share:.2f}",
        f"{result.warm_prediction_share:.2f}",
        f"{result.host_share:.1%}",
        f"{result.accept_length:.2f}",
        f"{result.break_even:.2f}",
        f"{result.engine_speedup:.2f}x",
    )


def verdict(results: Sequence[RoundResult]) -> str:
    """Whether speculation pays here, in one plain sentence."""
    best = max(results, key=lambda result: result.engine_speedup)
    where = f"k={best.num_speculative_tokens}, batch {best.batch}"
    if best.engine_speedup >= 1:
        return f"Speculation pays here: at best {best.engine_speedup:.2f}x plain ({where})."
    return (
        f"Speculation loses here: at best {best.engine_speedup:.2f}x plain ({where}). A model this "
        "small is bound by arithmetic on a CPU: every verified row costs almost a step of its own."
    )


def _step(side: Side) -> str:
    return milliseconds(side.step_s)
