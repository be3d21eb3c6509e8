"""A hub on this machine in the place of huggingface.co, and a cache of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants
from local_hub import LocalHub, local_hub
from oracle_files import ORACLES


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    """With the golden target and its FP8 draft."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    before, files = constants.ENDPOINT, constants.HUGGINGFACE_CO_URL_TEMPLATE
    with local_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        here = files.replace(before, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", here)
        hub.add("org/kimi", ORACLES / "kimi_bf16")
        hub.add("org/draft", ORACLES / "draft_mha_fp8_ptpc")
        yield hub
