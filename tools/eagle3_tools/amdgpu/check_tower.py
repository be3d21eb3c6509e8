"""Emulate MoonViT's program for two small images, and compare with float32 on the CPU."""

import time
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from eagle3_jax.config.vision import PixelConfig, VisionConfig
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.vision.item import ImageItem
from eagle3_jax.vision.packing import Packed, pack
from eagle3_tools.amdgpu.check import POISON, Checked, code_of
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.compiled import Source, compile_source
from eagle3_tools.amdgpu.program.run import run_program

NAME = "tower and projector of two images"
TOLERANCE = 2e-2
"""RMS error of bfloat16 relative to float32."""
CONFIG = VisionConfig(
    hidden_size=144,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=208,
    pos_emb_height=6,
    pos_emb_width=6,
    pos_emb_time=4,
    patch_size=14,
    text_hidden_size=256,
    merge_size=2,
    projector_ln_eps=1e-5,
    media_placeholder_token_id=0,
    pixels=PixelConfig(),
)
"""The head width is the real one."""
GRIDS = (1, 8, 8), (1, 4, 6)


def check_tower(name: str, arch: str, poisons: int) -> Checked:
    """Check that the features equal float32's up to rounding."""
    begin = time.monotonic()
    weights, run = _tower(jnp.bfloat16)
    given = [np.asarray(leaf) for leaf in jax.tree.leaves((weights, _packed()))]
    program = compile_source(Source(arch, run, (_shapes(weights), _shapes(_packed()))))
    found = code_of(name, arch, program)
    try:
        runs = [run_program(program, given, poison=one) for one in POISON[:poisons]]
    except Fault as fault:
        return found.failed(str(fault))
    if any(other.results[0].tobytes() != runs[0].results[0].tobytes() for other in runs):
        found = found.failed("what registers held at the start reaches a result")
    error = _rms_error(runs[0].results[0])
    if not error <= TOLERANCE:
        found = found.failed(f"{error:.2g} from float32, where {TOLERANCE:g} is allowed")
    return found.ran(runs[0], begin, reference=error, allowed=(TOLERANCE, float("nan")))


def _rms_error(found: np.ndarray) -> float:
    """Return the RMS error relative to the features' RMS, over the images' rows without padding."""
    weights, run = _tower(jnp.float32)
    tokens = sum(t * h * w for t, h, w in GRIDS) // CONFIG.token_patches
    expected = np.asarray(jax.jit(run)(weights, _packed()))[:tokens]
    difference = np.asarray(found, np.float32)[:tokens] - expected
    return float(np.sqrt(np.square(difference).mean() / np.square(expected).mean()))


@cache
def _tower(dtype: Any) -> tuple[Any, Callable[[Any, Packed], jax.Array]]:
    """Return weights that bfloat16 can represent, in this dtype, and the program's function."""
    model = VisionModel(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    graph, weights = nnx.split(model)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(weights))))

    # Biases and norms start as zeros and ones; add noise.
    def vary(leaf: jax.Array) -> jax.Array:
        noise = 0.1 * jax.random.normal(next(keys), leaf.shape, leaf.dtype)
        return (leaf + noise if leaf.ndim == 1 else leaf).astype(dtype)

    return jax.tree.map(vary, weights), lambda state, packed: nnx.merge(graph, state)(*packed)


@cache
def _packed() -> Packed:
    rng = np.random.default_rng(0)
    sizes = [t * h * w for t, h, w in GRIDS]
    patches = [rng.integers(0, 256, (size, 3, 14, 14), np.uint8) for size in sizes]
    items = [
        ImageItem(own, grid, size // CONFIG.token_patches)
        for own, grid, size in zip(patches, GRIDS, sizes, strict=True)
    ]
    return pack(items, CONFIG)


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)
