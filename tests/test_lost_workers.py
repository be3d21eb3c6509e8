"""A killed worker process ends the run with a message."""

import os
import subprocess
import sys
from pathlib import Path

KILLED = """
import os, signal

def test_before(): ...

def test_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def test_after(): ...
"""


def test_a_run_that_loses_a_worker_ends_and_names_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_killed.py").write_text(KILLED)
    (tmp_path / "test_other.py").write_text("def test_other(): ...")
    command = ["pytest", "-n", "2", "--dist", "loadgroup", "-p", "lost_workers", "-c", "/dev/null"]
    found = subprocess.run(
        [sys.executable, "-m", *command, "--rootdir", tmp_path, tmp_path],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 1, found.stdout + found.stderr
    assert "crashed while running 'test_killed.py::test_killed'" in found.stdout
    assert "worker restarting disabled" in found.stdout
