"""Kernels that are told to overlap half as many steps, and the problems that their check finds."""

from functools import partial

import jax

from eagle3_tools.aot.check import check
from eagle3_tools.kernel_cases import cases_by_name
from pallas_kernels import gpu
from pallas_kernels.tuning import trying


def with_half_the_stages(name: str, arch: str) -> str:
    """Problems of this case, recorded as it is, when its tiles have half their stages."""
    case = cases_by_name()[name]
    with gpu.assume(arch), trying({}) as asked:
        jax.eval_shape(partial(case.run), *jax.eval_shape(lambda: case.example(0)))
    less = {
        key: {field: max(1, count // 2) for field, count in tiles.items() if "stages" in field}
        for key, tiles in asked.items()
    }
    with trying({key: fields for key, fields in less.items() if fields}):
        return "\n".join(check(case, arch).problems)
