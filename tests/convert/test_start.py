"""What commands import before they have read their flags."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("command", ["convert.conversion.cli", "convert.quantize.cli"])
def test_flags_are_read_without_jax(command: str) -> None:
    code = f"import sys, {command}; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
