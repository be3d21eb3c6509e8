"""Results as printed lines: they are long, and each is printed as soon as it is known."""

from collections.abc import Sequence

from rich.console import Console

from eagle3_tools.kernel_bench.bars import Bar
from eagle3_tools.kernel_bench.ceilings import Ceilings
from eagle3_tools.kernel_bench.measure import Measured
from eagle3_tools.kernel_bench.timing import Spread


def print_ceilings(console: Console, ceilings: Ceilings) -> None:
    fp8 = "not measured" if ceilings.fp8 is None else f"{ceilings.fp8 / 1e12:.0f} TFLOP/s"
    _line(
        console,
        f"ceilings: reads {ceilings.read / 1e12:.2f} TB/s, copies {ceilings.copy / 1e12:.2f} TB/s, "
        f"bf16 {ceilings.bf16 / 1e12:.0f} TFLOP/s, fp8 {fp8}",
    )


def print_measured(console: Console, result: Measured) -> None:
    """Print time, fraction of the floor and every peer of a case."""
    if result.timed is None:
        _line(console, f"{result.case}: {result.refused}")
        return
    us, launch = result.timed.us, result.timed.with_launch_us
    verdict = "right" if result.right else "WRONG"
    _line(
        console,
        f"{result.case}: {_us(us)}, with launch {launch.median:.1f}; share of floor "
        f"{result.share:.2f}; {verdict} ({result.error:.1e})",
    )
    for name, peer in result.peers.items():
        if isinstance(peer, str):
            _line(console, f"    {name}: none, {peer}")
        else:
            _line(console, f"    {name}: {_us(peer)}; vs peer {peer.median / us.median:.2f}x")


def print_bars(console: Console, found: Sequence[Bar], *, dry_run: bool) -> None:
    """Print each goal with its worst case."""
    for bar in found:
        word = "no meaning in a dry run" if dry_run else "met" if bar.met else "NOT MET"
        _line(console, f"{word}: {bar.text} (>= {bar.least:.2f}): {bar.value:.2f} at {bar.case}")


def _us(spread: Spread) -> str:
    return f"{spread.median:.1f} us ({spread.low:.1f}-{spread.high:.1f})"


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
