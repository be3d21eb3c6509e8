"""Small cases of every operation in every format, with the tiles that hardware runs."""

from amdgpu.cases.attention import attention_cases
from amdgpu.cases.emulated import EmulatedCase
from amdgpu.cases.experts import expert_cases
from amdgpu.cases.long import long_cases
from amdgpu.cases.products import product_cases
from amdgpu.cases.rows import row_cases


def emulated_cases() -> list[EmulatedCase]:
    """The small ones first, then the real shapes of the long form."""
    small = [*attention_cases(), *product_cases(), *expert_cases(), *row_cases()]
    return [*small, *long_cases()]
