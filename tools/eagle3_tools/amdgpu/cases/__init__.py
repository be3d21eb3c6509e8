"""Small cases of every operation in every format, with the tiles that hardware runs."""

from eagle3_tools.amdgpu.cases.attention import attention_cases
from eagle3_tools.amdgpu.cases.emulated import EmulatedCase
from eagle3_tools.amdgpu.cases.experts import expert_cases
from eagle3_tools.amdgpu.cases.long import long_cases
from eagle3_tools.amdgpu.cases.products import product_cases
from eagle3_tools.amdgpu.cases.rows import row_cases


def emulated_cases() -> list[EmulatedCase]:
    """The small ones first, then the real shapes of the long form."""
    small = [*attention_cases(), *product_cases(), *expert_cases(), *row_cases()]
    return [*small, *long_cases()]
