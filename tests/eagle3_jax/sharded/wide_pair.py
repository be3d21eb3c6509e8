"""Random pairs whose every count divides by 8: heads, KV heads, experts, columns, vocabulary; and
of two KV heads."""

from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from tiny import DRAFT, HIDDEN, LATENT_DRAFT, MINIMAX, TARGET, latent_draft, tiny_draft, tiny_target

from eagle3_jax.config import LatentShape
from eagle3_jax.layers.quantized import QuantizedKernel, quantize_structure
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import QuantFormat

WIDE_TARGET = replace(
    TARGET,
    num_attention_heads=8,
    n_routed_experts=8,
    num_experts_per_tok=3,
    intermediate_size=256,
    moe_intermediate_size=256,
)
WIDE_MINIMAX = replace(
    MINIMAX,
    num_attention_heads=16,
    num_key_value_heads=8,
    num_local_experts=8,
    num_experts_per_tok=3,
)
WIDE_DRAFT = replace(
    DRAFT, num_attention_heads=16, num_key_value_heads=8, head_dim=4, intermediate_size=32
)
TWO_KV_HEADS_MINIMAX = replace(WIDE_MINIMAX, num_key_value_heads=2)
TWO_KV_HEADS_DRAFT = replace(
    WIDE_DRAFT, num_attention_heads=8, num_key_value_heads=2, head_dim=HIDDEN // 2
)
_LATENT = asdict(LATENT_DRAFT.latent) if LATENT_DRAFT.latent else {}
WIDE_LATENT_DRAFT = replace(
    LATENT_DRAFT,
    num_attention_heads=8,
    intermediate_size=32,
    latent=LatentShape(**{**_LATENT, "v_head_dim": HIDDEN // 8}),
)
DRAFTS: dict[str, Callable[[Target], Eagle3Draft]] = {
    "grouped": lambda target: tiny_draft(target, config=WIDE_DRAFT),
    "latent": lambda target: latent_draft(target, config=WIDE_LATENT_DRAFT),
    "of two KV heads": lambda target: tiny_draft(target, config=TWO_KV_HEADS_DRAFT),
}
FORMATS: dict[str, QuantFormat | None] = {
    "float32": None,
    "int4": QuantFormat("int4_group"),
    "mxfp4": QuantFormat("mxfp4"),
    "mxfp4 with activations": QuantFormat("mxfp4", "mxfp4"),
}
"""Whose arithmetic does not depend on how a row is split: no scale spans a whole row."""


def wide_target(format: str = "float32") -> Target:
    """Dense and routed feed-forward blocks in this format; arrays on one device."""
    target = tiny_target(config=WIDE_TARGET)
    kept = FORMATS[format]
    if kept is None:
        return target
    blocks = ("layers.0.mlp.{}.kernel", "layers.1.mlp.shared_experts.{}.kernel")
    blocks = (*blocks, "layers.1.mlp.experts.{}")
    names = ("gate_proj", "up_proj", "down_proj")
    paths = [block.format(name) for block in blocks for name in names]
    abstract = nnx.eval_shape(lambda: nnx.clone(target))
    quantize_structure(abstract, dict.fromkeys(paths, kept))
    for path in paths:
        _put(target, path, _drawn(_get(abstract, path)))
    return target


def wide_minimax() -> Target:
    """The second target with as many of everything."""
    return tiny_target(config=WIDE_MINIMAX)


def minimax_of_two_kv_heads() -> Target:
    """The same with KV heads that 4 or 8 devices share."""
    return tiny_target(config=TWO_KV_HEADS_MINIMAX)


def _drawn(kernel: Any) -> QuantizedKernel:
    """Random nibbles, with scales that keep the size of a row."""
    rng = np.random.default_rng(kernel.values.get_value().size)
    values, scale = kernel.values.get_value(), kernel.scale.get_value()
    kernel.values.set_value(jnp.asarray(rng.integers(0, 256, values.shape), jnp.uint8))
    small = rng.integers(118, 121, scale.shape) if scale.dtype == jnp.uint8 else 0.01
    kernel.scale.set_value(jnp.full(scale.shape, small, scale.dtype))
    return kernel


def _get(model: Any, path: str) -> Any:
    for part in path.split("."):
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    return model


def _put(model: Any, path: str, module: nnx.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(_get(model, parent), name, module)
