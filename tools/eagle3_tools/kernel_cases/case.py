"""One kernel at one named shape: the unit that is tested, compiled, tuned and timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pallas_kernels.dispatch import Operation

AMD, NVIDIA = ("gfx950", "gfx942"), ("sm_90",)
ARCHS = (*AMD, *NVIDIA)
"""Architectures that kernels are compiled for."""


@dataclass(frozen=True)
class Case:
    """A kernel with a shape, example arguments, cost floors and expectations.

    Attributes:
        operation, shape, variant: Together the name: `mla_decode kimi.attention@tp4 q4_fp8`.
        run: The kernel with all static arguments bound.
        reference: The reference implementation, with the same arguments and results.
        example: Takes a seed and returns JAX arrays of the true sizes with realistic data. The
            compile check uses `jax.eval_shape` of it.
        kernels: Names of the kernels that `run` launches.
        bytes_moved, flops: Lower bounds of the bytes that a call reads and writes, each counted
            once, and of its multiplications and additions.
        matrix: Part of the name of the matrix instruction that must do the work, by architecture;
            "" if there is none. The case is not compiled for an architecture that is missing.
        decode: True if the case belongs to a decode step, and so to the short compile check.
        tolerance: Largest `difference` from the reference.
        touched, live: Fractions of the weights or pools that a call reads, and of the launched
            programs that have work: 1 except for experts, of which a token chooses few.
    """

    operation: str
    shape: str
    variant: str
    run: Callable[..., Any]
    reference: Callable[..., Any]
    example: Callable[[int], tuple[Any, ...]]
    kernels: tuple[str, ...]
    bytes_moved: int
    flops: int
    matrix: Mapping[str, str] = field(default_factory=lambda: dict.fromkeys(ARCHS, ""))
    decode: bool = False
    tolerance: float = field(default=2e-2, kw_only=True)
    touched: float = field(default=1.0, kw_only=True)
    live: float = field(default=1.0, kw_only=True)

    @property
    def name(self) -> str:
        return f"{self.operation} {self.shape} {self.variant}"


def forms(operation: Operation, call: Callable[..., Any] | None = None, *given: Any) -> Any:
    """Return a case's operation, run and reference.

    `call(form, *given, *arrays)` calls a form of the operation with its static arguments; without
    it the form takes the arrays alone.
    """
    kernel, reference = operation.pallas, operation.reference
    if call is not None:
        kernel, reference = (partial(call, form, *given) for form in (kernel, reference))
    return {"operation": operation.name, "run": kernel, "reference": reference}
