"""Check that the emulator knows every instruction of the code that `make rocm-check` compiles."""

from functools import cache
from pathlib import Path

import jax

from eagle3_tools.amdgpu.check import Checked, code_of
from eagle3_tools.amdgpu.program.compiled import Source, compile_source
from eagle3_tools.kernel_cases import cases_by_name
from eagle3_tools.plan.compile.full_size import full_size_program
from eagle3_tools.plan.compile.full_size_pairs import full_size_options, name_of
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import make_plan, read_pair
from pallas_kernels import gpu

PUBLISHED = Path(__file__).parents[3] / "tests" / "oracles" / "published"
"""config.json files of published checkpoints."""


def check_code(name: str, arch: str, _: int) -> Checked:
    """Check the code of a kernel case."""
    case = cases_by_name()[name]
    with gpu.assume(arch):
        shapes = jax.eval_shape(lambda: case.example(0))
    return code_of(f"code of {name}", arch, compile_source(Source(arch, case.run, shapes)))


def check_full_size_code(name: str, arch: str, _: int) -> Checked:
    """Check the code of a published pair's round at full size."""
    options = full_size_rounds()[name]
    pair = read_pair(options)
    found = full_size_program(options, pair, make_plan(options, pair).memory)
    source = Source(arch, found.function, found.shapes, (found.state,))
    return code_of(f"code of {name}", arch, compile_source(source))


@cache
def full_size_rounds() -> dict[str, PlanOptions]:
    """Return the rounds by name, each for one GPU."""
    return {name_of(options): options for options in full_size_options(PUBLISHED)}


def arch_of(name: str) -> str:
    """Return the GPU architecture of a full-size round."""
    return GPUS[full_size_rounds()[name].gpu].arch
