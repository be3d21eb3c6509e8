"""Kernel constants from the model of our own compiled code: nothing was measured.

Each recorded case is a point: its bytes, and its predicted seconds including gaps between kernels.
For each kind, a + bytes / (e x HBM) is fitted with errors relative to each point's time.
"""

from collections.abc import Mapping, Sequence
from functools import cache

from eagle3_tools.kernel_model.gpus import BY_ARCH, ModelGpu
from eagle3_tools.kernel_model.record import CaseFacts, recorded
from eagle3_tools.plan.data.tuned import KernelKind, Tuned

OPERATIONS: Mapping[KernelKind, tuple[str, ...]] = {
    "gemm": ("joint_matmul", "gated_matmul", "fp8_matmul", "logits_argmax"),
    "experts": ("grouped_mlp",),
    "experts_int4": ("grouped_mlp",),
    "attention": ("mla_decode", "gqa_decode"),
    "small": ("cache_latents", "cache_heads", "absorb_query", "add_norm", "route"),
}
OF_PEAK: Mapping[KernelKind, float] = {
    **{"gemm": 0.5, "experts": 0.4, "experts_int4": 0.4, "attention": 0.25, "small": 1.0},
}
"""Fractions of the matrix units' peak: guesses, because the recorded cases are memory-bound."""
_LATENCIES = 2
"""Latencies of a kernel's start and end, for kinds without recorded cases."""


@cache
def modelled(arch: str) -> Mapping[KernelKind, Tuned]:
    """Return constants of all kinds; one without recorded cases keeps memory busy."""
    gpu = BY_ARCH[arch]
    return {kind: _fit(kind, _cases(kind, arch), gpu) for kind in OPERATIONS}


def _cases(kind: KernelKind, arch: str) -> list[CaseFacts]:
    found = []
    for name, case in recorded(arch).items():
        operation, _, rest = name.partition(" ")
        if operation in OPERATIONS[kind] and (
            not kind.startswith("experts") or ("int4" in rest) == (kind == "experts_int4")
        ):
            found.append(case)
    return found


def _fit(kind: KernelKind, cases: Sequence[CaseFacts], gpu: ModelGpu) -> Tuned:
    least = gpu.graph_gap
    if not cases:
        return Tuned(least + _LATENCIES * gpu.latency, gpu.reached, OF_PEAK[kind])
    times = [case.seconds(gpu) + least * len(case.kernels) for case in cases]
    if kind == "small":
        launches = sum(len(case.kernels) for case in cases)
        return Tuned(sum(times) / launches, 0.5, OF_PEAK[kind])
    sizes = [case.floor / gpu.hbm for case in cases]
    start, slope = _line(sizes, times)
    if start < least:
        start = least
        slope = _through(sizes, times, start)
    return Tuned(start, min(gpu.reached, 1 / slope), OF_PEAK[kind])


def _line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Return a and b of a + b x with the least squares of relative errors."""
    weights = [1 / y**2 for y in ys]
    total = sum(weights)
    x = sum(w * x for w, x in zip(weights, xs, strict=True)) / total
    y = sum(w * y for w, y in zip(weights, ys, strict=True)) / total
    both = list(zip(weights, xs, ys, strict=True))
    spread = sum(w * (xi - x) ** 2 for w, xi, _ in both)
    slope = sum(w * (xi - x) * (yi - y) for w, xi, yi in both) / spread if spread else 1.0
    return y - slope * x, max(slope, 1.0)


def _through(xs: Sequence[float], ys: Sequence[float], start: float) -> float:
    """Return b of a + b x for a given a."""
    both = [(1 / y**2, x, y - start) for x, y in zip(xs, ys, strict=True)]
    return max(1.0, sum(w * x * y for w, x, y in both) / sum(w * x * x for w, x, _ in both))
