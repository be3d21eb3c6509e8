"""How far the emulated machine code may lie from two other computations of an operation."""

from dataclasses import dataclass

from pallas_kernels.quantized import QuantFormat


@dataclass(frozen=True)
class Tolerance:
    """Largest differences as shares of the largest number expected; why: the reason for both.

    reference: from reference.py. interpreted: from the same kernel interpreted on a CPU, which
    rounds where the machine code rounds and sums in another order.
    """

    reference: float
    interpreted: float
    why: str


FLOAT32 = Tolerance(1e-5, 1e-5, "float32 throughout, summed in another order")
ROUTED = Tolerance(
    1e-5, 1e-5, "float32 weights; ids and map are equal, and so is every byte of quantised rows"
)
BF16 = Tolerance(
    1e-2, 1e-2, "sums round to bfloat16, of which one step at the largest number is 7.8e-3"
)
FP8_ROWS = Tolerance(
    8e-2, 8e-2, "rows are rounded to e4m3, of which one step at the largest number is 7.1e-2"
)

_INNER = "the reference rounds gate and up to bfloat16, kernels only their gated product, which is "
_TO_E4M3 = "then rounded to e4m3: a step of 7.1e-2, which a sum in another order may take too"
_OF_EXPERTS = {
    "none": BF16,
    "int8_token": Tolerance(2e-2, 1e-2, _INNER + "then rounded to int8: a step of 7.9e-3"),
    "fp8_token": Tolerance(5e-2, 5e-2, _INNER + _TO_E4M3),
    "fp8_group": Tolerance(5e-2, 5e-2, _INNER + _TO_E4M3),
    "mxfp4": Tolerance(1.5e-1, 3e-2, _INNER + "then rounded to e2m1: a step of a third"),
}


def of_experts(format: QuantFormat | None) -> Tolerance:
    """Of two products with quantised activations between them; `test_rounding.py` shows the reason
    to be the whole one."""
    return _OF_EXPERTS["none" if format is None else format.activations]
