"""Servers over the fake engine."""

import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from fake_server import Served, served
from oracle_files import ORACLES


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


@pytest.fixture(autouse=True)
def interrupts_reach_pytest() -> Iterator[None]:
    """Undoes what the commands do to Ctrl-C."""
    handler = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.fixture(scope="session", autouse=True)
def no_program_cache() -> Iterator[None]:
    """Tests neither read nor fill the user's cache of compiled programs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", "")
        yield


@pytest.fixture(scope="session")
def target_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as it is published: weights, tokenizer and chat template in one place."""
    directory = tmp_path_factory.mktemp("target")
    for part in ("kimi_bf16", "tokenizer"):
        shutil.copytree(ORACLES / part, directory, dirs_exist_ok=True)
    return directory
