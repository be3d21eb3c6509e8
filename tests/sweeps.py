"""Parameters of tests that sweep over formats, sizes or seeds."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def sweep(cases: Iterable[Any], kept: Sequence[Any]) -> list[Any]:
    """Mark every case that is not in `kept` as `long`; a tuple has several arguments."""
    return [case if case in kept else _long(case) for case in cases]


def _long(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
