"""Packages whose names are imported when they are first asked for (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The package's `__getattr__`. homes: the module of each group of names.

    No name may be that of a module in the package: importing the module would hide it.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home_of[name])
        except AttributeError as broken:  # Python would say that the name is not there, not why.
            raise ImportError(f"{home_of[name]} cannot be imported: {broken}") from broken
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
