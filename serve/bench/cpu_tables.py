"""Plain decoding and rounds of the CPU as tables for a terminal."""

from collections.abc import Sequence

from rich.console import Console

from serve.bench.equal import describe
from serve.bench.plain import PlainResult, Side
from serve.bench.rounds import RoundResult
from serve.bench.tables import milliseconds, titled


def print_plain(console: Console, results: Sequence[PlainResult]) -> None:
    """Plain decoding beside its peers, the byte floor, and where the time goes."""
    table = titled("Plain decoding, greedy, random 108 M-parameter Kimi, float32, one thread")
    headings = ("", "ms a step", "tokens/s", "to the engine (median)", "(best)", "whole runs")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for result in results:
        for cells in _plain_rows(result):
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    for result in results:
        print_floor(console, result)
        print_profile(console, result)


def _plain_rows(result: PlainResult) -> list[tuple[str, ...]]:
    """The engine, then every peer; tokens a second leave the prefill out, whole runs have it."""

    def cells(name: str, side: Side) -> tuple[str, str, str]:
        return name, _step(side), f"{result.batch / side.step_s.median:.1f}"

    rows: list[tuple[str, ...]] = [
        (*cells(f"batch {result.batch}: engine", result.engine), "", "", "")
    ]
    for name, peer in result.peers.items():
        mark = " (the peer)" if name == result.fastest_peer else ""
        ratios = peer.ratio_median, peer.ratio_best, peer.ratio_end_to_end
        times = (f"{ratio:.2f}x" for ratio in ratios)
        rows.append((*cells(f"transformers, {name}{mark}", peer.times), *times))
    return rows


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
    for name, peer in result.peers.items():
        console.print(
            f"batch {result.batch}: {peer.identical} of {result.batch} sequences of "
            f"{result.new_tokens.long} tokens equal those of transformers, {name}"
        )
        for difference in peer.differences:
            console.print(f"  {describe(difference)}")


def print_profile(console: Console, result: PlainResult) -> None:
    """Where a step's time goes, by operation."""
    table = titled(f"Batch {result.batch}: one step by operation, under the profiler")
    for heading in ("operation", "us a step", "share", "runs a step"):
        table.add_column(heading, justify="left" if heading == "operation" else "right")
    whole = sum(operation.microseconds for operation in result.profile)
    for operation in result.profile:
        share = f"{operation.microseconds / whole:.0%}"
        count = f"{operation.count:.0f}"
        table.add_row(operation.name, f"{operation.microseconds:.0f}", share, count)
    console.print(table)


def print_rounds(console: Console, results: Sequence[RoundResult]) -> None:
    """Phases, prediction and host share of every k and batch."""
    table = titled("The speculative round of the pair, greedy, ms a round (median)")
    headings = ("k", "batch", "decode", "draft alone", "verify alone", "in turn", "one program")
    headings += (
        "engine",
        "of prediction",
        "of alone",
        "host",
        "kept a round",
        "break-even",
        "tokens/s",
        "plain",
        "ratio",
        "its range",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for result in results:
        table.add_row(*_round_cells(result))
    console.print(table)
    console.print(verdict(results))


def _round_cells(result: RoundResult) -> tuple[str, ...]:
    times, plain, answers = result.times, result.plain, result.answers
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
        f"{answers.kept_length:.2f}",
        f"{result.break_even:.2f}",
        f"{answers.tokens_per_s.median:.0f}",
        f"{answers.plain_tokens_per_s.median:.0f}",
        f"{answers.speedup.median:.2f}x",
        f"{answers.speedup.worst:.2f}-{answers.speedup.best:.2f}",
    )


def verdict(results: Sequence[RoundResult]) -> str:
    """Whether speculation pays here, in one plain sentence."""
    best = max(results, key=lambda result: result.answers.speedup.median)
    speedup = best.answers.speedup.median
    where = f"k={best.num_speculative_tokens}, batch {best.batch}"
    if speedup >= 1:
        return f"Speculation pays here: at best {speedup:.2f}x plain ({where})."
    return (
        f"Speculation loses here: at best {speedup:.2f}x plain ({where}). A model this "
        "small is bound by arithmetic on a CPU: every verified row costs almost a step of its own."
    )


def _step(side: Side) -> str:
    return milliseconds(side.step_s)
