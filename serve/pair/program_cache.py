"""Keep compiled programs on disk, so that a second start is fast."""

import os
import warnings
from pathlib import Path
from tempfile import TemporaryFile

import jax

from eagle3_jax.engine.programs.fingerprint import cpu_threads
from pallas_kernels.gpu import plugin_versions
from serve.pair.notices import Notify, print_to_stderr

VARIABLE = "JAX_COMPILATION_CACHE_DIR"


def keep_compiled_programs(notify: Notify = print_to_stderr) -> None:
    """Keep programs in the user's cache, unless JAX's variable names a directory, or "" for none.

    Each version of a compiler has a folder of its own, because JAX's names of programs tell
    versions of jaxlib apart and not those of the plugin that compiled for the GPU. So has each
    number of threads that is not the host's, because programs for a CPU divide loops by it. If the
    directory is not writable, one line says what to do; existing programs are still read.
    """
    given = os.environ.get(VARIABLE)
    if given == "":
        return
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    own = [*map("-".join, plugin_versions().items())]
    if not own and (threads := cpu_threads()) != os.cpu_count():
        own = [f"{threads}-threads"]
    chosen = os.path.join(given or os.path.join(cache, "eagle3-jax"), *own)
    jax.config.update("jax_compilation_cache_dir", chosen)
    directory = Path(chosen)
    if "://" in chosen or (reason := _unwritable(directory)) is None:
        return
    notify(
        f"compiled programs are not kept, the next start compiles again: {directory}: {reason}; "
        f"set {VARIABLE} to a directory that can be written, or to '' for none"
    )
    if directory.is_dir():
        warnings.filterwarnings("ignore", "Error writing persistent compilation cache")
    else:
        jax.config.update("jax_enable_compilation_cache", False)


def _unwritable(directory: Path) -> str | None:
    """Return the reason why no file can be created in the directory, or None."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            return None
    except OSError as error:
        return error.strerror or str(error)
