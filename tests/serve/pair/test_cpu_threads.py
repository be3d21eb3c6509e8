"""The number of threads that compute on a CPU."""

import os
import subprocess
import sys

import jax
import pytest

from eagle3_jax.engine.programs.fingerprint import THREADS
from serve.pair.cpu_threads import POOL, TASKS, check_cpu_threads, set_cpu_threads

pytestmark = pytest.mark.skipif(not TASKS.exists(), reason="threads are counted by Linux")

START = """
import sys
from serve.pair.cpu_threads import check_cpu_threads, set_cpu_threads
set_cpu_threads(int(sys.argv[1]))
check_cpu_threads(int(sys.argv[1]))
"""


def started(count: int, flags: str = "") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    command = [sys.executable, "-c", START, f"{count}"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_xla_has_the_threads_that_it_was_given() -> None:
    found = started(3)
    assert found.returncode == 0, found.stderr


def test_fewer_threads_than_devices_are_refused() -> None:
    found = started(2, "--xla_force_host_platform_device_count=4")
    assert "JAX has started 4 threads for 4 devices" in found.stderr


def test_a_number_that_comes_after_jax_has_devices_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jax.block_until_ready(jax.numpy.ones(2))
    names = [task.joinpath("comm").read_text().strip() for task in TASKS.glob("*")]
    monkeypatch.setenv(THREADS, "")
    set_cpu_threads(count := names.count(POOL) + 1)
    with pytest.raises(ValueError, match=f"--cpu-threads {count}: JAX has started {count - 1} "):
        check_cpu_threads(count)
    check_cpu_threads(None)


def test_engines_on_a_gpu_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: "rocm")
    with pytest.raises(ValueError, match="--cpu-threads 2 is for engines on a CPU"):
        check_cpu_threads(2)
