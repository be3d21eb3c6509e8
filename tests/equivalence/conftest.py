"""The golden pairs, loaded once."""

import pytest
from oracle_files import ORACLES, QUANTIZED_DRAFTS, WEIGHT_ONLY

from convert import load_draft, load_target
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target


@pytest.fixture(scope="session")
def target() -> Target:
    return load_target(ORACLES / "kimi_bf16")


@pytest.fixture(scope="session")
def minimax() -> Target:
    return load_target(ORACLES / "minimax_bf16")


@pytest.fixture(scope="session")
def pair(request: pytest.FixtureRequest) -> tuple[Target, Eagle3Draft]:
    """The draft whose golden file is the parameter, and its target."""
    name: str = request.param
    target = request.getfixturevalue("minimax" if "minimax" in name else "target")
    directory = ORACLES / QUANTIZED_DRAFTS.get(name, name)
    as_published = not name.endswith(WEIGHT_ONLY)
    return target, load_draft(directory, target, quantize_activations=as_published)
