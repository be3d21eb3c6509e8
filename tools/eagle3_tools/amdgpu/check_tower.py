"""MoonViT's program for two small images, executed, against float32 on this CPU."""

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
from eagle3_tools.amdgpu.check import (
    POISON,
    Checked,
    beyond_problems,
    code_problems,
    kernels_of,
    own_kernels,
    unsettled,
)
from eagle3_tools.amdgpu.emulator.memory import Fault
from eagle3_tools.amdgpu.program.compiled import Source, compile_source
from eagle3_tools.amdgpu.program.run import run_program

NAME = "tower and projector of two images"
TOLERANCE = 2e-2
"""Of bfloat16 beside float32, root mean squares."""
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
"""Heads of the real width."""
GRIDS = (1, 8, 8), (1, 4, 6)


def check_tower(job: tuple[str, str, int]) -> Checked:
    """(name, GPU, kinds of poison): features are those of float32, but for roundings."""
    name, arch, poisons = job
    begin = time.monotonic()
    weights, run = _tower(jnp.bfloat16)
    given = [np.asarray(leaf) for leaf in jax.tree.leaves((weights, _packed()))]
    program = compile_source(Source(arch, run, (_shapes(weights), _shapes(_packed()))))
    kernels, own = kernels_of(program), own_kernels(program)
    problems = [problem for kernel in kernels for problem in code_problems(kernel, own)]
    there = frozenset(i.name for kernel in kernels for i in kernel.code.values())
    try:
        runs = [run_program(program, given, poison=one) for one in POISON[:poisons]]
    except Fault as fault:
        return Checked(name, arch, (*problems, str(fault)), there=there)
    problems += beyond_problems(runs[0].launches, own)
    if any(other.results[0].tobytes() != runs[0].results[0].tobytes() for other in runs):
        problems.append("what registers held at the start reaches a result")
    error = _rms_error(runs[0].results[0])
    if not error <= TOLERANCE:
        problems.append(f"{error:.2g} from float32, where {TOLERANCE:g} is allowed")
    return Checked(
        name,
        arch,
        tuple(problems),
        tuple(runs[0].launches),
        there,
        reference=error,
        allowed=(TOLERANCE, float("nan")),
        library_share=runs[0].library_share,
        seconds=time.monotonic() - begin,
        unsettled=unsettled(kernels, own),
    )


def _rms_error(found: np.ndarray) -> float:
    """Share of the features' own root mean square; of the images' rows, not of padding's."""
    weights, run = _tower(jnp.float32)
    tokens = sum(t * h * w for t, h, w in GRIDS) // CONFIG.token_patches
    expected = np.asarray(jax.jit(run)(weights, _packed()))[:tokens]
    difference = np.asarray(found, np.float32)[:tokens] - expected
    return float(np.sqrt(np.square(difference).mean() / np.square(expected).mean()))


@cache
def _tower(dtype: Any) -> tuple[Any, Callable[[Any, Packed], jax.Array]]:
    """Weights that bfloat16 has, in this dtype, and the program's function of them."""
    model = VisionModel(CONFIG, rngs=nnx.Rngs(0), dtype=jnp.bfloat16)
    graph, weights = nnx.split(model)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(weights))))

    # Biases and norms, which begin as zeros and ones, are noise too.
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
