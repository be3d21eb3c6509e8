"""Compilation of one case for one architecture, and the check of the result."""

import time
from dataclasses import dataclass
from typing import Any

import jax

from eagle3_tools.aot.compile import Program, compile_program
from eagle3_tools.aot.expectations import (
    SMALLEST_WEIGHT,
    copy_problems,
    kernel_problems,
    matrix_problems,
    temporary_problems,
)
from eagle3_tools.aot.speed import (
    may_be_narrow,
    share_problems,
    tolerance_for,
    width_problems,
)
from eagle3_tools.aot.targets import target_of
from eagle3_tools.aot.triton_calls import TritonCall, triton_calls
from eagle3_tools.kernel_cases import cases_by_name
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_model.record import CaseFacts, recorded
from pallas_kernels import gpu


@dataclass(frozen=True)
class Checked:
    """Result of a check: problems found, and the kernels that the case names."""

    case: str
    arch: str
    problems: tuple[str, ...]
    kernels: tuple[Any, ...] = ()
    temporary_bytes: int = 0
    seconds: float = 0.0
    facts: CaseFacts | None = None
    """Set if facts were requested or recorded."""


def check_named(job: tuple[str, str]) -> Checked:
    """Check the case of this name for this architecture. Raises the compiler's errors."""
    name, arch = job
    return check(cases_by_name()[name], arch)


def read_named(job: tuple[str, str]) -> Checked:
    """Check as `check_named` does and read the kernels' facts. Needs the extra `machine-code`."""
    name, arch = job
    return check(cases_by_name()[name], arch, facts=True)


def check(case: Case, arch: str, *, facts: bool = False) -> Checked:
    """Compile the case at its true shape and check the result."""
    begin = time.monotonic()
    with gpu.assume(arch):
        arguments = jax.eval_shape(lambda: case.example(0))
        results = jax.eval_shape(lambda *a: case.run(*a), *arguments)
    program = compile_program(arch, case.run, *arguments, donate=written(arguments, results))
    kernels = tuple(k for k in program.kernels if any(map(k.is_called, case.kernels)))
    # The first argument is multiplied with the others: it holds activations, of which copies are
    # allowed.
    problems = examine(case, program, kernels, jax.tree.leaves(arguments[1:]))
    launched = _launched(program, kernels)
    if any(case.matrix.values()):  # Cases without a product on any GPU only load rows.
        problems += width_problems(program.arch, launched, may_be_narrow(arguments))
    known = recorded(arch).get(case.name)
    found = _facts(case, arch, launched) if facts or known else None
    if found and known:
        problems += share_problems(found, known, arch, tolerance_for(arch))
    seconds = time.monotonic() - begin
    return Checked(
        case.name,
        arch,
        tuple(problems),
        kernels,
        program.temporary_bytes,
        round(seconds, 2),
        found,
    )


def _launched(program: Program, kernels: tuple[Any, ...]) -> list[tuple[Any, TritonCall]]:
    """Pair each call of one of these kernels with the kernel, in order."""
    named = {kernel.name: kernel for kernel in kernels}
    calls = triton_calls(program.hlo)
    return [(named[call.compiled], call) for call in calls if call.compiled in named]


def _facts(case: Case, arch: str, launched: list[tuple[Any, TritonCall]]) -> CaseFacts:
    found = tuple(target_of(arch).facts(kernel, call, arch) for kernel, call in launched)
    return CaseFacts(case.name, float(case.bytes_moved), case.touched, case.live, found)


def written(arguments: tuple[Any, ...], results: Any) -> tuple[int, ...]:
    """Return the indices of large arguments that are also results: the pools, which are donated."""
    large = {(x.shape, x.dtype) for x in jax.tree.leaves(results) if x.size >= SMALLEST_WEIGHT}
    known = (isinstance(x, jax.ShapeDtypeStruct) and (x.shape, x.dtype) in large for x in arguments)
    return tuple(index for index, found in enumerate(known) if found and index > 0)


def examine(
    case: Case,
    program: Program,
    kernels: tuple[Any, ...],
    weights: list[jax.ShapeDtypeStruct],
) -> list[str]:
    """Return every difference from the case's expectations."""
    missing = {n for n in case.kernels if not any(kernel.is_called(n) for kernel in kernels)}
    there = ", ".join(sorted(kernel.name for kernel in program.kernels))
    return [
        *(f"no kernel {name}, only {there or 'none'}" for name in sorted(missing)),
        *(problem for kernel in kernels for problem in kernel_problems(kernel, program.arch)),
        *matrix_problems(kernels, case.matrix[program.arch]),
        *copy_problems(program, weights),
        *temporary_problems(program, weights),
    ]
