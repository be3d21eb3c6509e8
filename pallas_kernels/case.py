"""One kernel at one named shape: what is tested, compiled, tuned and timed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

AMD, NVIDIA = ("gfx950", "gfx942"), ("sm_90",)
ARCHS = (*AMD, *NVIDIA)
"""Every architecture that kernels are compiled for."""


@dataclass(frozen=True)
class Case:
    """operation, shape and variant name it: `mla_decode kimi.attention@tp4 q4_fp8`.

    run: the kernel with all that is static bound; reference: its contract, same arguments and
    result. example(seed): arguments as JAX arrays, at the true sizes and with realistic data;
    jax.eval_shape of it is what is compiled. kernels: the names of what it launches.
    bytes_moved and flops: what must at least be read and written, and multiplied and added, once
    for each call: the floors. matrix: architecture -> part of the name of the matrix instruction
    that must do the work, "" where there is none; an architecture that is not in it is not compiled
    for.
    decode: whether it belongs to a decode step, and so to the short form of the check.
    touched: share of its weights or pools that a call reads; live: of the programs that it launches
    those that have work. Both are 1 but for experts, of which a token chooses few.
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
        """How it is listed."""
        return f"{self.operation} {self.shape} {self.variant}"
