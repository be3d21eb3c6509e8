"""Free memory and memory maps of compiled programs in a test process."""

import ctypes
import gc
import os
from pathlib import Path

import jax

from eagle3_jax.engine.programs.compiled import compile_program

MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000
"""Compiled programs use memory maps; beyond Linux's 65,530 a process crashes inside LLVM."""
MEMORY = Path("/proc/self/statm")
MOST_PAGES = 1_200 * 2**20 // os.sysconf("SC_PAGE_SIZE")
"""Resident pages between two modules. A worker has 530 MB when it has imported all tests. Dropping
programs after every module costs 40 % more processor time, because they are traced again.
"""


def make_room(most_maps: int = MOST_MAPS) -> None:
    """Drop compiled programs if they are too many or too large.

    They are reloaded from the persistent cache. A worker had 5 GB after 5,000 tests: programs and
    JAX's traces of them, and memory that LLVM freed but glibc kept.
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
