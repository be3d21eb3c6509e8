"""python -m eagle3_tools.twin: run a command on emulated MI355X.

Needs the extra `rocm-check`, g++ and binutils; no GPU and no ROCm.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eagle3_tools.twin.libraries import libraries

PATCH = Path(__file__).with_name("patch")
NO_AUTOTUNING = "--xla_gpu_autotune_level=0"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the command's exit status."""
    parser = argparse.ArgumentParser(prog="python -P -m eagle3_tools.twin", description=__doc__)
    parser.add_argument("-n", type=int, default=1, metavar="N", help="devices (default 1)")
    parser.add_argument("-m", type=int, default=2, metavar="GIB", help="memory of each (default 2)")
    parser.add_argument("--cache", type=Path, default=Path(".cache/rocm-twin"), metavar="DIR")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    flags = parser.parse_args(argv)
    folder = libraries(flags.cache.resolve())
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/emulator"
        emulator = _start_emulator(path)
        try:
            environment = _environment(folder, path, flags.n, flags.m)
            return subprocess.call(flags.command, env=environment)
        finally:
            emulator.terminate()
            emulator.wait()


def _start_emulator(path: str) -> subprocess.Popen[bytes]:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-m", "eagle3_tools.twin.worker", path]
    emulator = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | one_thread)
    assert emulator.stdout
    if not emulator.stdout.readline():
        raise RuntimeError(f"the emulator ended with status {emulator.wait()}")
    return emulator


def _environment(folder: Path, path: str, devices: int, gib: int) -> dict[str, str]:
    there = os.environ.get("PYTHONPATH")
    return {
        "XLA_FLAGS": NO_AUTOTUNING,
        # Each buffer is an allocation of its own, and holds nothing before and after its life.
        "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "TWIN_SOCKET": path,
        "TWIN_DEVICES": str(devices),
        "TWIN_MEMORY_GIB": str(gib),
        "JAX_PLATFORMS": "rocm,cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(PATCH), there])),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


if __name__ == "__main__":
    sys.exit(main())
