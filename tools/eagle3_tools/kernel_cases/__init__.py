"""Every kernel at every named shape, for the compile check, the tuner and the benchmark."""

from collections import Counter
from functools import cache

from eagle3_tools.kernel_cases import attention, caches, experts, latent_attention, products, rows
from eagle3_tools.kernel_cases.case import Case


def all_cases() -> list[Case]:
    """Return the cases of all operations, sorted by operation.

    Raises ValueError if two cases have the same name.
    """
    modules = rows, caches, attention, latent_attention, products, experts
    found = [case for module in modules for case in module.cases()]
    twice = [name for name, times in Counter(case.name for case in found).items() if times > 1]
    if twice:
        raise ValueError(f"cases that are there twice: {', '.join(twice)}")
    return sorted(found, key=lambda case: case.operation)


@cache
def cases_by_name() -> dict[str, Case]:
    """Return all cases. Cached, because it takes half a second."""
    return {case.name: case for case in all_cases()}
