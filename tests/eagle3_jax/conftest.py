"""The tiny pair, built once: programs are compiled for shapes, so one pair serves all tests."""

import pytest
from tiny import tiny_draft, tiny_target

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget


@pytest.fixture(scope="session")
def target() -> KimiTarget:
    return tiny_target()


@pytest.fixture(scope="session")
def draft(target: KimiTarget) -> Eagle3Draft:
    return tiny_draft(target)
