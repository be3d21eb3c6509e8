"""Plot of a plan: tokens a second by load, and the speedup of each k."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eagle3_tools.plan.model.kernels import BOUNDS
from eagle3_tools.plan.model.published_rows import Compared
from eagle3_tools.plan.planner import CapacityPlan

SUFFIXES = (".png", ".svg")
_COLOURS = {"datasheet": "#0072b2", "tuned": "#d55e00"}
_PUBLISHED = "#000000"


def check_plot(path: Path) -> None:
    """Raise ValueError for an unsupported file type and ImportError if matplotlib is missing."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"--plot must end in {' or '.join(SUFFIXES)}; got {path}")
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError("--plot needs matplotlib: pip install 'eagle3-jax[plot]'") from error


def write_plot(path: Path, plan: CapacityPlan, compared: Sequence[Compared]) -> None:
    """Plot the rates and, if there is a draft, the speedups."""
    from matplotlib.figure import Figure

    options = plan.options
    panels = 2 if plan.memory.draft else 1
    picture = Figure(figsize=(6 * panels, 4.8), layout="constrained")
    left, *right = picture.subplots(1, panels, squeeze=False)[0]
    devices = options.parallel.devices
    picture.suptitle(
        f"{devices} x {options.gpu}, {options.isl} in, {options.osl} out, decoding only"
    )
    _draw_rates(left, plan, compared)
    for axes in right:
        _draw_speedups(axes, plan)
    picture.savefig(path, dpi=120)


def _draw_rates(axes: Any, plan: CapacityPlan, compared: Sequence[Compared]) -> None:
    from matplotlib.ticker import LogLocator

    for bound in BOUNDS:
        loads = [load for load in plan.loads if load.bound == bound]
        load_sizes = [load.concurrency for load in loads]
        plain = [load.plain_tokens_per_s for load in loads]
        colour = _COLOURS[bound]
        axes.plot(load_sizes, plain, "o--", color=colour, label=f"plain, {bound}")
        if plan.memory.draft:
            best = [load.tokens_per_s(load.best) for load in loads]
            axes.plot(load_sizes, best, "o-", color=colour, label=f"best k, {bound}")
    published = _of_setup(plan, compared)
    for k in dict.fromkeys(row.figure.num_speculative_tokens for row in published):
        rows = [row for row in published if row.figure.num_speculative_tokens == k]
        points = [row.figure.concurrency for row in rows], [row.tokens_per_s for row in rows]
        accepted = f"k = {k}, accept length {rows[0].figure.accept_length:g}"
        marker, label = ("+", "plain") if k is None else ("x", accepted)
        style = {"color": _PUBLISHED, "markersize": 9, "label": f"published, {label}"}
        axes.plot(*points, marker, **style)
    axes.set(xscale="log", yscale="log", xlabel="concurrent sequences", ylabel="tokens/s a GPU")
    sizes = plan.options.concurrency
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _draw_speedups(axes: Any, plan: CapacityPlan) -> None:
    loads = [load for load in plan.loads if load.bound == "tuned"]
    for number, load in enumerate(loads):
        colour = str(0.75 * (1 - (number + 1) / len(loads)))
        counts = [one.num_speculative_tokens for one in load.rounds]
        worth = [load.speedup(one) for one in load.rounds]
        axes.plot(counts, worth, ".-", color=colour, label=f"C = {load.concurrency}")
        best = load.best
        axes.plot(best.num_speculative_tokens, load.speedup(best), "o", color=_COLOURS["tuned"])
    axes.axhline(1.0, color="grey", linewidth=0.8)
    axes.set(xlabel="drafts a round, k (circle: best)", ylabel="speedup over plain, tuned limit")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def _of_setup(plan: CapacityPlan, compared: Sequence[Compared]) -> list[Compared]:
    """Return published figures for the same number and kind of GPUs and this context."""
    options = plan.options
    wanted = options.gpu, options.parallel.devices, options.context
    setups = ((row, row.setup) for row in compared)
    return [row for row, s in setups if (s.gpu.name, s.parallel.devices, s.context) == wanted]
