"""Products of one x with several kernels in one launch; the parameters stay separate."""

from collections.abc import Callable
from typing import Any

from jaxtyping import Array, Float

from pallas_kernels.dispatch import choose
from pallas_kernels.grouped_matmul.dense import dense_refusal, is_four_bit
from pallas_kernels.joint_matmul import four_bit, pallas, reference
from pallas_kernels.partial_sums import Product
from pallas_kernels.quantized import OneKernel
from pallas_kernels.rms_norm import Norm


def joint_matmul(
    x: Float[Array, "*rows inputs"],
    *kernels: OneKernel,
    norm: Norm | None = None,
    in_parts: bool = False,
    implementation: str | None = None,
) -> tuple[Product, ...]:
    """Compute `pallas_kernels.matmul` of x with each kernel, after the norm if there is one.

    in_parts: True if the consumers add up `PartialSums`, so that a kernel may return them. Raises
    ValueError if a kernel does not fit x, and on an implementation that cannot run.
    """
    return _run("joint_matmul", implementation, x, *kernels, norm=norm, in_parts=in_parts)


def gated_matmul(
    x: Float[Array, "*rows inputs"],
    gate: OneKernel,
    up: OneKernel,
    *,
    norm: Norm | None = None,
    implementation: str | None = None,
) -> Float[Array, "*rows outputs"]:
    """Compute silu(x @ gate) * (x @ up) for kernels of one shape; `norm` is applied to x first.

    Raises ValueError on shapes that do not fit, and on an implementation that cannot run.
    """
    if gate.shape != up.shape:
        raise ValueError(f"gated_matmul: expected kernels of one shape: {gate.shape}, {up.shape}")
    return _run("gated_matmul", implementation, x, gate, up, norm=norm)


def _run(
    operation: str, implementation: str | None, x: Array, *kernels: OneKernel, **options: Any
) -> Any:
    if any(kernel.shape[0] != x.shape[-1] for kernel in kernels):
        shapes = [tuple(kernel.shape) for kernel in kernels]
        raise ValueError(
            f"{operation}: expected x [.., in], kernels [in, out]; got {x.shape}, {shapes}"
        )
    plain: Callable[..., Any] = getattr(reference, operation)
    if all(map(is_four_bit, kernels)):
        refusals = (dense_refusal(x, one) for one in kernels if is_four_bit(one))
        kernel = next(filter(None, refusals), None) or getattr(four_bit, operation)
    else:
        kernel = pallas.refusal_of_all(x, kernels) or getattr(pallas, operation)
    return choose(operation, implementation, reference=plain, pallas=kernel)(x, *kernels, **options)
