"""Terminal tables of a training plan."""

from rich.console import Console

from eagle3_tools.plan.data.gpus import GIB, GPUS
from eagle3_tools.plan.model.kernels import BOUNDS
from eagle3_tools.plan.training.model import TORCHSPEC_HOURS, Part, TrainingPlan
from eagle3_tools.plan.training.options import TOKENS
from serve.text_table import text_table

PROGRAMS: dict[Part, str] = {"features": "the target's pass", "update": "the update"}


def print_training(console: Console, plan: TrainingPlan) -> None:
    options, gpu = plan.options.pair, GPUS[plan.options.pair.gpu]
    devices = options.parallel.devices
    memory = text_table(
        f"Memory of each of {devices} {gpu.name}, {plan.options.rows} x {options.max_model_len:,} "
        f"tokens, {plan.options.unroll} steps (model, not measured)",
        ("what", "GiB"),
        left=("what",),
    )
    for what, nbytes in plan.resident.items():
        memory.add_row(what, f"{nbytes / GIB:.2f}")
    for part, name in PROGRAMS.items():
        taken = plan.temporaries(part)
        memory.add_section()
        memory.add_row(f"while {name} runs", f"{sum(taken.values()) / GIB:.2f}")
        for what, nbytes in taken.items():
            memory.add_row(f"  {what}", f"{nbytes / GIB:.2f}")
    memory.add_section()
    verdict = "fits" if plan.fits() else "does not fit"
    memory.add_row("at most", f"{plan.most / GIB:.1f} of {gpu.memory / GIB:.0f}: {verdict}")
    console.print(memory)
    hours = [f"hours on\n{count}" for count in plan.options.gpus]
    times = text_table(
        f"{plan.options.tokens:.2g} tokens on {gpu.name} (roofline, not measured)",
        ("limit", "target ms\na step", "draft ms\na step", "tokens/s of\na replica", *hours),
        left=("limit",),
    )
    for bound in BOUNDS:
        parts = plan.seconds(bound)
        times.add_row(
            bound,
            *(f"{1e3 * parts[name]:,.0f}" for name in ("target", "draft")),
            f"{plan.tokens_per_second(bound):,.0f}",
            *(f"{plan.hours(count, bound):,.1f}" for count in plan.options.gpus),
        )
    console.print(times)
    theirs = TORCHSPEC_HOURS * plan.options.tokens / TOKENS
    ours = plan.hours(devices, "tuned") * devices
    console.print(
        f"GPU hours at the tuned limit: {ours:,.0f} of {gpu.name}; TorchSpec's reported rate makes "
        f"{theirs:,.0f} of H200 for as many tokens.",
        highlight=False,
    )
