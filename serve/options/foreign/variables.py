"""Report environment variables of other engines that are set but not read here."""

from collections.abc import Iterator, Mapping

from serve.kv_events.config import HASHES_VARIABLE
from serve.options.operations import KEY_VARIABLE

MEANINGS = {
    "choose or build kernels of other engines": (
        *("VLLM_ROCM_", "VLLM_USE_TRITON_", "VLLM_USE_AITER_", "SGLANG_USE_AITER", "SGLANG_AITER_"),
        *("AITER_", "FLYDSL_", "DSL2_ROOT", "CK_TILE_", "MLIR_PATH", "TRITON_"),
        "TORCH_BLAS_",
    ),
    "options of other engines": ("VLLM_", "SGLANG_", "ATOM_", "SAFETENSORS_FAST_GPU"),
    "threads of OpenMP, which nothing here uses": ("OMP_NUM_THREADS",),
}
"""Meaning -> prefixes of variables; the first match counts."""


def describe_ignored_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each kind of variable that is set."""
    left = environment.keys() - {KEY_VARIABLE, HASHES_VARIABLE}
    for meaning, beginnings in MEANINGS.items():
        found = sorted(name for name in left if name.startswith(beginnings))
        left -= {*found}
        if found:
            yield f"not read, {meaning}: {', '.join(found)}"
