"""One folder of compiled programs for all servers of these tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first process compiles them for all."""
    return tmp_path_factory.mktemp("programs")
