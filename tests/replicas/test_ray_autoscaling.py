"""docs/deploy/ray_serve.py starts another replica when one has more requests than it should."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed; see make ray-test")
from probe import wait_for
from test_ray_serve import answer, processes, serving


def test_a_replica_comes_when_one_has_more_requests_than_it_should(
    programs: Path, request: pytest.FixtureRequest
) -> None:
    if not request.config.getoption("--long"):
        pytest.skip("a start of its own: --long")
    with serving(programs, 1, 2, "--target-requests", "1"), ThreadPoolExecutor(6) as clients:
        assert len(processes()) == 1
        until = time.monotonic() + 200
        asking = [clients.submit(answers_until, until) for _ in range(6)]
        wait_for(lambda: len(processes()) == 2, 200, every_s=0.5)
        assert len({one for client in asking for one in client.result()}) == 1


def answers_until(deadline: float) -> set[str]:
    """Ask as one client again and again until two replicas are there."""
    found = {answer()}
    while time.monotonic() < deadline and len(processes()) < 2:
        found.add(answer())
    return found
