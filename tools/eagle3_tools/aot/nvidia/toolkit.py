"""CUDA toolkit with an assembler that keeps its input and its log.

XLA always runs `ptxas` on the PTX of every kernel, and looks for it in `xla_gpu_cuda_data_dir`
first. This script copies the PTX, requests the resource figures and keeps them. Version queries go
to the wheel's `ptxas`.
"""

import importlib.util
import os
import shlex
from pathlib import Path

_SCRIPT = """#!/bin/sh
[ -f "$1" ] || exec {ptxas} "$@"
cp "$1" {kept}/$$.ptx
{ptxas} -v "$@" > {kept}/$$.log 2>&1
status=$?
cat {kept}/$$.log >&2
exit $status
"""


def make_toolkit(kept: Path) -> Path:
    """Make a toolkit whose assembler writes N.ptx and N.log to `kept` in each run.

    Raises RuntimeError if the wheel with the assembler is missing.
    """
    real, made = _installed_toolkit(), kept / "toolkit"
    (made / "bin").mkdir(parents=True)
    assembler = made / "bin" / "ptxas"
    folder = shlex.quote(str(kept))
    assembler.write_text(
        _SCRIPT.format(ptxas=shlex.quote(str(real / "bin/ptxas")), kept=folder), encoding="utf-8"
    )
    assembler.chmod(0o755)
    for name in ("bin/nvlink", "nvvm"):
        os.symlink(real / name, made / name)
    return made


def assembled(kept: Path) -> list[tuple[str, str]]:
    """Return PTX and log of every assembler run."""
    # XLA may write the same PTX next to them, without a log.
    return [(log.with_suffix(".ptx").read_text(), log.read_text()) for log in kept.glob("*.log")]


def _installed_toolkit() -> Path:
    """Return the folder of the wheel nvidia-cuda-nvcc."""
    try:
        found = importlib.util.find_spec("nvidia.cu13")
    except ModuleNotFoundError:
        found = None
    for place in (found.submodule_search_locations or ()) if found else ():
        if (Path(place) / "bin/ptxas").exists():
            return Path(place)
    raise RuntimeError("ptxas is not installed: pip install nvidia-cuda-nvcc")
