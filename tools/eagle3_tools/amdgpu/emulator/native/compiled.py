"""Compile the C form of kernels, and keep it in the user's cache, where no one else can write.

The functions of instructions are in libraries that all kernels share, so that a new kernel needs
few new ones; its own library calls them.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from eagle3_tools.amdgpu.emulator.native.source import RUNTIME, Layout, c_source
from eagle3_tools.aot.amd.machine_code import Code, Kernel
from eagle3_tools.aot.amd.stubs import run_tool

_FLAGS = (
    *("-march=native", "-std=gnu11", "-shared", "-fPIC", "-w", "-fwrapv", "-Wl,-z,defs"),
    *("-fno-strict-aliasing", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
)
_FAST = "-O3", "--param", "max-completely-peel-times=1"
_PACKAGE = Path(__file__).parents[1]


@dataclass(frozen=True)
class NativeForm:
    """A kernel's C form: its library, vector registers of a wave, and the names in each block."""

    library: str
    registers: int
    blocks: Sequence[Mapping[str, int]]


def native_form(kernel: Kernel, entries: Sequence[int] = ()) -> NativeForm:
    """Return the C form of a kernel. Machine code whose form is kept is not decoded again.

    Raises Fault if an instruction has no C form, RuntimeError without gcc.
    """
    if not isinstance(kernel.code, Code):
        return _made(kernel, entries)
    kept = _folder() / f"{_digest(repr((kernel.arch, entries, kernel.code.raw)))}.json"
    if kept.exists():
        return NativeForm(**json.loads(kept.read_text()))
    form = _made(kernel, entries)
    _write(kept, json.dumps(vars(form)))
    return form


def _made(kernel: Kernel, entries: Sequence[int]) -> NativeForm:
    layout = Layout.of(kernel, entries)
    return NativeForm(str(_compiled(layout, kernel.arch)), layout.registers, layout.blocks)


def _compiled(layout: Layout, arch: str) -> Path:
    """Return the library of a kernel, compiled unless it is kept."""
    instructions = repr([(i, i.operands, i.fields) for i in layout.reached.values()])
    target = _folder() / f"{_digest(f'{arch} {layout.entries} {instructions}')}.so"
    if not target.exists():
        source = c_source(layout, arch)
        needed = sorted(set(_functions(source.functions).values()))
        linked = f"-Wl,-rpath,{target.parent}", *map(str, needed)
        _compile(source.text, target, "-O1", *linked)
    return target


def _functions(texts: Mapping[str, str]) -> dict[str, Path]:
    """Return the library of each function; compile one of those that none has."""
    there = {name: path for path in _folder().glob("*.names") for name in path.read_text().split()}
    missing = sorted(texts.keys() - there.keys())
    if missing:
        names = _folder() / f"{_digest(' '.join(missing))}.names"
        text = "\n".join([RUNTIME, *(texts[name] for name in missing)])
        _compile(text, names.with_suffix(".so"), *_FAST)
        _write(names, " ".join(missing))
        there |= dict.fromkeys(missing, names)
    return {name: there[name].with_suffix(".so") for name in texts}


def _write(target: Path, text: str) -> None:
    """Write a file, which appears atomically."""
    kept = target.with_suffix(f".{os.getpid()}")
    kept.write_text(text)
    kept.rename(target)


def _compile(text: str, target: Path, *flags: str) -> None:
    """Compile to `target`, which appears atomically."""
    with tempfile.TemporaryDirectory(dir=target.parent) as made:
        source, result = Path(made) / "text.c", Path(made) / "library.so"
        source.write_text(text)
        run_tool("gcc", *_FLAGS, str(source), *flags, "-o", str(result), "-lm")
        result.rename(target)


@cache
def _folder() -> Path:
    """Return the folder for this compiler, this CPU and this text of the emulator."""
    files = sorted(path for kind in ("py", "c", "h") for path in _PACKAGE.rglob(f"*.{kind}"))
    native = run_tool("gcc", "-march=native", "-Q", "--help=target")
    version = run_tool("gcc", "--version") + native + "".join(file.read_text() for file in files)
    cache_home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache_home / "eagle3-jax-emulator" / _digest(version)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
