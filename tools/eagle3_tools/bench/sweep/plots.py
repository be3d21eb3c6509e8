"""Figures of a sweep (extra `plot`)."""

import io
from collections.abc import Sequence
from itertools import cycle
from operator import attrgetter
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.ticker
from matplotlib.figure import Figure

from eagle3_tools.bench.sweep.rows import Row

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's palette, which is safe for colour-blind readers."""
STYLE: Any = {
    "svg.hashsalt": "eagle3",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "axes.axisbelow": True,
    "legend.frameon": False,
}
TOKENS = "output tokens/s and GPU"


def figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """Return figures by name: one for each ISL/OSL, and one of acceptance if there is any."""
    lengths = dict.fromkeys((row.isl, row.osl) for row in rows)
    with matplotlib.rc_context(STYLE):
        found = {
            f"throughput_isl{isl}_osl{osl}": _throughput(
                [row for row in rows if (row.isl, row.osl) == (isl, osl)]
            )
            for isl, osl in lengths
        }
        if real := [row for row in rows if row.per_position and not row.synthetic]:
            found["acceptance"] = _acceptance(real)
    return found


def save(figure: Figure, path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        figure.savefig(path.with_suffix(".png"), dpi=150)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def inline_svg(figure: Figure) -> str:
    """Return the <svg> element for an HTML page."""
    text = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue().partition("<svg")[2].join(("<svg", ""))


def _throughput(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_load, by_user = figure.subplots(1, 2)
    for colour, (name, of) in zip(cycle(COLOURS), _configurations(rows).items(), strict=False):
        look: dict[str, Any] = {"color": colour, "marker": "o", "markersize": 4, "label": name}
        look["linestyle"] = "--" if of[0].synthetic else "-"
        medians = [row.output_tput_per_gpu.median for row in of]
        _with_spread(by_load, [row.concurrency for row in of], of, look)
        by_user.plot([row.intvty for row in of], medians, **look)
        for row, height in zip(of, medians, strict=True):
            by_user.annotate(
                f"{row.concurrency}",
                (row.intvty, height),
                (4, 3),
                textcoords="offset points",
                size=7,
            )
    by_load.set(xlabel="requests at a time", ylabel=TOKENS, ylim=(0, None))
    by_load.set_xscale("log", base=2)
    loads = sorted({row.concurrency for row in rows})
    by_load.set_xticks(loads, [f"{load}" for load in loads])
    by_load.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    by_user.set(xlabel="tokens/s that one user sees (1 / TPOT)", ylabel=TOKENS, ylim=(0, None))
    by_user.set_xlim(0, None)
    by_load.legend()
    figure.suptitle(f"{rows[0].isl} tokens in, {rows[0].osl} out", x=0.01, ha="left")
    return figure


def _with_spread(axes: Any, loads: Sequence[int], rows: Sequence[Row], look: Any) -> None:
    """Plot the median over seeds, with bars from the smallest to the largest."""
    spreads = [row.output_tput_per_gpu for row in rows]
    below = [spread.median - spread.best for spread in spreads]
    above = [spread.worst - spread.median for spread in spreads]
    axes.errorbar(loads, [s.median for s in spreads], (below, above), capsize=2, **look)


def _acceptance(rows: Sequence[Row]) -> Figure:
    """Plot acceptance by position for every configuration, averaged over lengths and loads."""
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.subplots()
    for colour, (name, of) in zip(cycle(COLOURS), _configurations(rows).items(), strict=False):
        shares = [row.per_position or () for row in of]
        means = [sum(share) / len(share) for share in zip(*shares, strict=True)]
        places = range(1, len(means) + 1)
        axes.plot(places, means, color=colour, marker="o", markersize=4, label=name)
    axes.set(xlabel="position of the draft token", ylabel="accepted", ylim=(0, 1))
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1))
    axes.legend()
    return figure


def _configurations(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        suffix = f" (synthetic, {row.synthetic:g})" if row.synthetic else ""
        found.setdefault(f"{row.configuration}{suffix}", []).append(row)
    return {name: sorted(of, key=attrgetter("concurrency")) for name, of in found.items()}
