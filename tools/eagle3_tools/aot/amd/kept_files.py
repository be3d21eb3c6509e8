"""Files that XLA writes during a compilation, and the kernels in them."""

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from eagle3_tools.aot.amd.code_object import GpuKernel, read_code_object
from eagle3_tools.aot.triton_calls import TritonCall, triton_calls

_LAUNCH = re.compile(r"\S* (\S+) grid: .*shared_memory: (\d+) bytes")

_compiled: dict[tuple[str, str, str], GpuKernel] = {}
"""(architecture, name, call text) -> kernel. XLA caches code and writes its files only once."""


@contextmanager
def kept_files() -> Iterator[Path]:
    """Return a context whose folder receives XLA's code objects and IR."""
    changed = ("TMPDIR", "TF_ROCM_KEEP_XLA_TEMPFILES")
    before = {name: os.environ.get(name) for name in changed}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(zip(changed, (folder, "1"), strict=True))
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def kernels_of(arch: str, hlo: str, folder: Path) -> list[GpuKernel]:
    """Return the kernels of a program from `folder`, with static and dynamic local memory."""
    objects = sorted(folder.glob("*.hsaco"))
    launched = "\n".join(f.read_text() for f in folder.glob("*.thunk_sequence.txt"))
    dynamic = {name: int(size) for name, size in _LAUNCH.findall(launched)}
    found = [
        replace(kernel, lds_bytes=kernel.lds_bytes + dynamic.get(kernel.name, 0))
        for path in objects
        for kernel in read_code_object(path)
    ]
    return found + [kernel for call in triton_calls(hlo) for kernel in _kept(arch, call, found)]


def _kept(arch: str, call: TritonCall, found: list[GpuKernel]) -> list[GpuKernel]:
    """Return the call's kernel if an earlier program compiled it; remember a new one."""
    known = (arch, call.compiled, call.text)
    new = next((kernel for kernel in found if kernel.name == call.compiled), None)
    if new:
        _compiled[known] = new
    elif known in _compiled:
        return [_compiled[known]]
    return []
