"""The golden target, loaded once."""

import pytest
from oracle_files import ORACLES

from convert import load_target
from eagle3_jax.models.kimi import KimiTarget


@pytest.fixture(scope="session")
def target() -> KimiTarget:
    return load_target(ORACLES / "kimi_bf16", dtype="float32")
