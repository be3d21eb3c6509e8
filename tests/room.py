"""Room for all the programs that a test process compiles."""

import ctypes
import gc
import os
from pathlib import Path

import jax

from eagle3_jax.engine.programs.compiled import compile_program

MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000
"""Compiled programs are memory maps; beyond Linux's 65,530 a process crashes inside LLVM."""
MEMORY = Path("/proc/self/statm")
MOST_PAGES = 1_300 * 2**20 // os.sysconf("SC_PAGE_SIZE")
"""Resident pages between two modules. One module needs some 500 MB more; three workers and the
servers that they start are to fit into 6 GB."""


def make_room(most_maps: int = MOST_MAPS) -> None:
    """Forget compiled programs when they are too many or too large.

    They come back from the persistent cache. Of 5 GB that a worker had after 5,000 tests, programs
    and JAX's traces of them were one part, and memory that LLVM freed and glibc kept the other.
    """
    if MAPS.exists() and (is_large() or MAPS.read_bytes().count(b"\n") > most_maps):
        compile_program.cache_clear()
        jax.clear_caches()
        gc.collect()
        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


def is_large() -> bool:
    """Return whether this process has more memory than a worker should keep."""
    return int(MEMORY.read_text().split()[1]) > MOST_PAGES
