"""Servers over the fake engine."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fake_engine import FakeEngine
from fake_server import Served, served


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Starts servers over given engines; they end with the test."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(served(engine, **options))


@pytest.fixture(scope="session")
def fake() -> Iterator[Served]:
    """One server for all tests that leave nothing behind."""
    with served(FakeEngine(step_s=0.001)) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def no_program_cache() -> Iterator[None]:
    """Tests neither read nor fill the user's cache of compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        yield
