"""The golden target, loaded once."""

import pytest
from oracle_files import ORACLES

from convert import load_target
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target(ORACLES / "kimi_bf16")
