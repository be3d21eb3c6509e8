"""Keys of several processes, and processes that meet within seconds, as options and threads."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from probe import free_port
from several_processes import written_key

from serve.options.hosts import HostOptions

Of = Callable[[int], HostOptions]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.hosts.messages.BEAT_MS", 100)
    monkeypatch.setattr("serve.hosts.messages.SILENCE_MS", 1000)
    monkeypatch.setattr("serve.hosts.rendezvous.MEET_S", 5.0)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A key that only its owner can read."""
    return written_key(tmp_path / "hosts_key")


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture(params=[False, True], ids=["no key", "key"])
def of(request: pytest.FixtureRequest, key: Path) -> Of:
    """Options of one of three processes."""
    coordinator, calls = free_port(), free_port()
    known = key if request.param else None
    return lambda process: HostOptions(("127.0.0.1", coordinator), calls, 3, process, known)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool
