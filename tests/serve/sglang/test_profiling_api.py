"""/start_profile and /stop_profile over JAX's profiler."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jax.numpy as jnp
import pytest
from fake_engine import FakeEngine
from fake_server import Served

from serve.options.operations import Operations

Start = Callable[[Path | None], httpx.Client]


@pytest.fixture
def start(serve: Callable[..., Served]) -> Iterator[Start]:
    """Servers that write traces to a directory, or none."""
    yield lambda directory: serve(FakeEngine(), operations=Operations(profile_dir=directory)).http


def test_a_trace_lies_in_the_servers_directory_whatever_a_request_names(
    start: Start, tmp_path: Path
) -> None:
    traces, other = tmp_path / "traces", tmp_path / "other"
    http = start(traces)
    body = {"output_dir": str(other), "activities": ["CPU", "GPU"], "num_steps": None}
    assert http.post("/start_profile", json=body).json()["ignored"] == ["output_dir", "activities"]
    assert http.post("/start_profile").status_code == 409
    jnp.zeros(3).block_until_ready()
    assert http.post("/stop_profile", content=b"").json() == {"success": True}
    assert list(traces.rglob("*.xplane.pb")) and not other.exists()
    assert http.post("/stop_profile").status_code == 409


@pytest.mark.parametrize("content", [b"", b"{}"])
def test_without_a_directory_nothing_is_traced(start: Start, content: bytes) -> None:
    answer = start(None).post("/start_profile", content=content)
    assert answer.status_code == 400 and "--profile-dir" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "content, naming",
    [(b"{", "not valid JSON"), (b"[]", "JSON object"), (b'{"num_steps": 5}', "num_steps")],
)
def test_bad_bodies_are_400(start: Start, tmp_path: Path, content: bytes, naming: str) -> None:
    answer = start(tmp_path).post("/start_profile", content=content)
    assert answer.status_code == 400 and naming in answer.json()["error"]["message"]
