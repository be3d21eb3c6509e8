"""Report of compiled kernels' facts and the model's predictions, some lines for each launch."""

from collections import Counter
from collections.abc import Iterator

from eagle3_tools.kernel_model.facts import KernelFacts, Work
from eagle3_tools.kernel_model.gpus import ModelGpu
from eagle3_tools.kernel_model.predict import Prediction
from eagle3_tools.kernel_model.record import CaseFacts


def facts_lines(case: CaseFacts, gpu: ModelGpu) -> Iterator[str]:
    """Yield lines for each launch of the case, then the total against the case's floor."""
    yield f"{case.name} {gpu.arch}"
    for facts, found in zip(case.kernels, case.predictions(gpu), strict=True):
        yield from _kernel_lines(facts, found, gpu)
    if case.kernels:
        yield f"  all: {_against_floor(case.seconds(gpu), case.floor / gpu.hbm)}"


def _kernel_lines(facts: KernelFacts, found: Prediction, gpu: ModelGpu) -> Iterator[str]:
    main = facts.main
    yield (
        f"  {facts.name}: {found.programs:.0f} programs of {facts.warps} waves, "
        f"{found.resident} a unit, {found.rounds:.1f} rounds, {found.steps:.0f} steps; "
        f"{facts.registers} registers, {facts.lds / 1024:.0f} KiB of LDS, {facts.stages} stages"
    )
    yield (
        f"    a wave's step: loads {_loads(main)}; LDS {main.lds / 1024:.1f} KiB; clocks: "
        f"matrix {main.matrix:.0f}, vector {main.vector:.0f}, s_nop {main.idle:.0f}; waits for "
        f"{main.chain.latencies:.2f} latencies a step, {facts.outside.chain.latencies:.2f} outside"
    )
    limits = ", ".join(f"{name} {s * 1e6:.1f}" for name, s in found.parts.items())
    yield (
        f"    {found.in_flight / 1024:.1f} KiB in flight a unit, {gpu.needed / 1024:.0f} needed; "
        f"us of the first round: {limits}"
    )
    yield f"    {_against_floor(found.seconds, found.floor_seconds)}, limit: {found.limit}"


def _loads(work: Work) -> str:
    widths: Counter[tuple[int, bool]] = Counter()
    for load in work.loads:
        widths[load.width, load.to_lds] += load.nbytes
    return ", ".join(
        f"{nbytes / 1024:g} KiB by {width} B{' to LDS' * lds}"
        for (width, lds), nbytes in sorted(widths.items(), reverse=True)
    )


def _against_floor(seconds: float, floor: float) -> str:
    return f"{seconds * 1e6:.1f} us, floor {floor * 1e6:.1f} us, share {floor / seconds:.2f}"
