"""Kernels that are told to overlap half as many steps, and what their check says of it."""

from functools import partial

import jax

from eagle3_tools.aot.check import check
from eagle3_tools.aot.speed import share_problems
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from eagle3_tools.kernel_model.record import CaseFacts
from pallas_kernels import gpu
from pallas_kernels.tuning import trying


def facts_of(case: Case, arch: str) -> CaseFacts:
    found = check(case, arch, facts=True).facts
    assert found is not None
    return found


def halved(good: Case, bad: Case, arch: str) -> list[str]:
    """Problems of `bad` beside `good` as recorded."""
    return share_problems(facts_of(bad, arch), facts_of(good, arch), arch)


def with_half_the_stages(name: str, arch: str) -> str:
    """Problems of this case, recorded as it is, when its tiles have half their stages."""
    case = next(case for case in all_cases() if case.name == name)
    with gpu.assume(arch), trying({}) as asked:
        jax.eval_shape(partial(case.run), *jax.eval_shape(lambda: case.example(0)))
    less = {
        key: {field: max(1, count // 2) for field, count in tiles.items() if "stages" in field}
        for key, tiles in asked.items()
    }
    with trying({key: fields for key, fields in less.items() if fields}):
        return "\n".join(check(case, arch).problems)
