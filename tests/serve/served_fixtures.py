"""Fixtures of servers and pairs for the tests of servers and of the benchmark."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from called_tools import MARKS
from fake_engine import FakeEngine
from fake_server import Serve, Served, served
from oracle_files import ORACLES

from convert.text.tiktoken_file import SpecialToken
from serve.pair.loading import LoadedPair, load_pair


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts servers over given engines; they end with the test."""
    with ExitStack() as stack:
        yield lambda engine, **options: stack.enter_context(served(engine, **options))


@pytest.fixture(scope="session")
def fake() -> Iterator[Served]:
    """One server for all tests that leave nothing behind."""
    with served(FakeEngine(step_s=0.001)) as server:
        yield server


@pytest.fixture(scope="session")
def target_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint as it is published: weights, tokenizer and chat template in one place."""
    directory = tmp_path_factory.mktemp("target")
    for part in ("kimi_bf16", "tokenizer"):
        shutil.copytree(ORACLES / part, directory, dirs_exist_ok=True)
    return directory


@pytest.fixture(scope="session")
def pair(target_directory: Path) -> LoadedPair:
    """A tiny random pair, whose tokenizer has marks of tool calls in place of reserved tokens."""
    pair = load_pair(target_directory, ORACLES / "draft_mha_bf16")
    free = (t.token_id for t in pair.tokenizer.special_tokens if "reserved" in t.text)
    named = zip(free, MARKS, strict=False)
    marks = {token_id: SpecialToken(token_id, text, False) for token_id, text in named}
    special = tuple(marks.get(t.token_id, t) for t in pair.tokenizer.special_tokens)
    return replace(pair, tokenizer=replace(pair.tokenizer, special_tokens=special))
