"""Compiling programs anew, so that what a test has changed is in them."""

from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

import pytest

from eagle3_jax.engine.programs.compiled import compile_program


def compile_rounds_anew(
    monkeypatch: pytest.MonkeyPatch, module: ModuleType, *, prefills: bool = False
) -> None:
    """In `module`, rounds are compiled as the code is now; so are prefills if asked to, else they
    stay the shared ones."""
    fresh = lru_cache(maxsize=None)(compile_program.__wrapped__)

    def compile_anew(kind: str, *inputs: Any, **options: Any) -> Callable[..., Any]:
        return (fresh if prefills or "round" in kind else compile_program)(kind, *inputs, **options)

    monkeypatch.setattr(module, "compile_program", compile_anew)
