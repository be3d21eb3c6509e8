"""Fingerprint of everything that the values in a KV cache page depend on.

Pages outlive an engine on disk and go to other servers. They are found again only under the
fingerprint that they were written with.
"""

import os
import platform
from functools import reduce
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend import backend
from jax.sharding import NamedSharding
from jaxtyping import UInt32

from eagle3_jax.config import DraftConfig, TargetConfig
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.layers.split_context import GATHERED_SLOTS
from pallas_kernels import gpu

CPU_FACTS = Path("/proc/cpuinfo")
FEATURES = "flags", "Features"
"""The line of CPU features on x86 and on Arm."""
THREADS = "PJRT_NPROC"
"""Environment variable by which XLA's CPU client sizes its pools."""
WITHOUT_EFFECT = "xla_dump", "xla_force_host_platform_device_count", "xla_gpu_cuda_data_dir"
"""XLA flags that change no program."""


def compiled_for(leaf: Array, *, autotune: bool) -> tuple[object, ...]:
    """Return facts of an array's devices that compiled programs depend on.

    They are versions of runtime, compiler and libraries, XLA's flags and options, matmul precision
    and, for CPUs, instructions and threads. A GPU's runtime version, `rocm 70200`, is the one that
    the plugin was built for: it names neither the plugin nor the libraries that are installed.
    """
    config: Any = jax.config  # Its stubs leave the field out.
    flags = gpu.xla_flags().items()
    (name,) = {device.platform for device in leaf.devices()}
    return (
        backend.get_backend(name).platform_version,
        gpu.plugin_versions() | gpu.library_versions(),
        sorted(flag for flag in flags if not flag[0].startswith(WITHOUT_EFFECT)),
        sorted(gpu.compiler_options(autotune=autotune).items()),
        str(config.jax_default_matmul_precision),
        (cpu_features(), cpu_threads()) if name == "cpu" else None,
    )


def cpu_features() -> list[str]:
    """Return this CPU's instructions as Linux lists them, elsewhere its name alone."""
    try:
        lines = CPU_FACTS.read_text().splitlines()
    except OSError:
        return [platform.machine(), platform.processor()]
    listed = (line.partition(":")[2].split() for line in lines if line.startswith(FEATURES))
    return sorted(next(listed, [platform.machine()]))


def cpu_threads() -> int:
    """Return XLA's thread count: as THREADS says, or the number of cores this process may use."""
    if given := os.environ.get(THREADS, ""):
        return int(given)
    own = getattr(os, "sched_getaffinity", None)
    return len(own(0)) if own else os.cpu_count() or 1


PAGE_LAYOUT = 2
"""Version of the layout of rows in a page and of its bytes in transfer (`page_copies.py`)."""
PACKAGES = "eagle3-jax", "jax", "jaxlib"
ODD = 2_654_435_761
"""Knuth's multiplier: products of neighbouring numbers differ in all bits."""


def page_fingerprint(
    target: TargetConfig,
    draft: DraftConfig | None,
    weights: tuple[Array, ...],
    config: EngineConfig,
    page_bytes: int,
    vision: VisionConfig | None = None,
) -> bytes:
    """Hash all weights and facts that pages depend on to 32 bytes, after reading the weights once.

    The facts: configurations, page layout and computation, devices, mesh, compilation, versions.
    """
    facts = {
        "layout": PAGE_LAYOUT,
        "versions": [version(package) for package in PACKAGES],
        "devices": sorted(device.device_kind for device in weights[0].devices()),
        "mesh": _mesh_sizes(weights[0]),
        "compiled": compiled_for(weights[0], autotune=config.xla_autotune),
        "weights": [(leaf.dtype.name, leaf.shape) for leaf in weights],
        "page": (page_bytes, config.page_size, config.decode_context_parallel_size),
        "cache": (config.kv_cache_dtype, repr(config.kv_cache_scale)),
        "kernels": (config.kernels, sorted(config.xla_kernels)),
        "pieces": config.pages_per_seq * config.page_tokens > GATHERED_SLOTS,
        "exact": (config.exact, config.prefill_chunk if config.exact else None),
        "pair": (repr(target), repr(draft)),
    }
    if vision is not None:
        facts["vision"] = (repr(vision), config.mm_draft_embedding, config.mm_encoder_tp_mode)
    sums = np.asarray(_sums(weights)).tobytes()
    return blake2b(repr(facts).encode() + sums, digest_size=32).digest()


def _mesh_sizes(leaf: Array) -> dict[str, int]:
    """Return the size of each mesh axis; axes of equal size sum different parts."""
    lies = leaf.sharding
    return dict(lies.mesh.shape) if isinstance(lies, NamedSharding) else {}


@jax.jit
def _sums(leaves: tuple[Array, ...]) -> UInt32[Array, " leaves"]:
    """Sum each array's bits modulo 2^32, each times an odd number for its position.

    The result does not depend on the sharding.
    """
    return jnp.stack([_sum(leaf) for leaf in leaves])


def _sum(leaf: Array) -> UInt32[Array, ""]:
    bits = _bits(leaf)
    places = (lax.broadcasted_iota(jnp.uint32, bits.shape, axis) for axis in range(bits.ndim))
    place = reduce(lambda before, own: before * jnp.uint32(ODD) + own, places, jnp.uint32(1))
    return jnp.sum(bits * (place * jnp.uint32(2) + jnp.uint32(1)), dtype=jnp.uint32)


def _bits(leaf: Array) -> UInt32[Array, "*shape"]:
    if leaf.dtype == jnp.bool_:
        return leaf.astype(jnp.uint32)
    width = leaf.dtype.itemsize * 8
    if jnp.issubdtype(leaf.dtype, jnp.integer):
        return leaf.astype(jnp.uint32)
    unsigned = {8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width]
    return lax.bitcast_convert_type(leaf, unsigned).astype(jnp.uint32)
