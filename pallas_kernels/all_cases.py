"""List of every kernel at every named shape, for the compile check, the tuner and the benchmark."""

import pkgutil
from collections import Counter
from importlib import import_module
from importlib.util import find_spec

import pallas_kernels
from pallas_kernels.case import Case


def all_cases() -> list[Case]:
    """Return the cases of all operations, sorted by operation name.

    Raises ValueError if two cases have the same name.
    """
    folders = sorted(m.name for m in pkgutil.iter_modules(pallas_kernels.__path__) if m.ispkg)
    modules = [f"pallas_kernels.{folder}.cases" for folder in folders]
    found = [case for name in modules if find_spec(name) for case in import_module(name).cases()]
    twice = [name for name, times in Counter(case.name for case in found).items() if times > 1]
    if twice:
        raise ValueError(f"cases that are there twice: {', '.join(twice)}")
    return found
