"""A hub on this machine in the place of huggingface.co, and a cache of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from local_hub import LocalHub, local_hub
from oracle_files import ORACLES


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    """With the golden target and its FP8 draft; what a test patches it gives back first."""
    with pytest.MonkeyPatch.context() as patch, local_hub(tmp_path / "cache") as hub:
        patch.chdir(tmp_path)
        hub.add("org/kimi", ORACLES / "kimi_bf16")
        hub.add("org/draft", ORACLES / "draft_mha_fp8_ptpc")
        yield hub
