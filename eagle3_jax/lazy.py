"""Lazy imports of a package's names on first access (PEP 562)."""

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Make the package's `__getattr__`; `homes` maps modules to their names.

    A name must not equal a module in the package, because importing the module would hide it.
    """
    home_of = {name: module for module, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            module = import_module(home_of[name])
        except AttributeError as broken:  # Python would only say that the name is missing.
            raise ImportError(f"{home_of[name]} cannot be imported: {broken}") from broken
        value = getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return load
