"""The embedded pair on several devices, with its heads repeated for more of them than it has."""

from dataclasses import replace
from typing import TypeVar

import jax.numpy as jnp
from flax import nnx
from jax import Array
from jax.sharding import Mesh

from convert import load_draft, load_target
from convert.published.parameters import abstract_draft, abstract_target
from eagle3_jax.mesh import shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from serve.demo import demo_draft_dir, demo_target_dir

HEADS = 4
"""Of target and draft, queries as keys and values."""
HEAD_AXES = ("heads", "kv_heads")
Model = TypeVar("Model", Target, Eagle3Draft)


def load_pair(mesh: Mesh | None) -> tuple[Target, Eagle3Draft]:
    """Target and draft in float32 on the mesh, or on one device; see `heads_repeated`."""
    times = heads_repeated(mesh.size if mesh else 1)
    whole = mesh if times == 1 else None
    target = load_target(demo_target_dir(), dtype=jnp.float32, mesh=whole)
    draft = load_draft(demo_draft_dir(), target, dtype=jnp.float32, mesh=whole)
    if mesh is None or times == 1:
        return target, draft
    heads = times * HEADS
    wide_target = abstract_target(replace(target.config, num_attention_heads=heads), jnp.float32)
    config = replace(draft.config, num_attention_heads=heads, num_key_value_heads=heads)
    wide_draft = abstract_draft(config, jnp.float32)
    return _filled(wide_target, target, times, mesh), _filled(wide_draft, draft, times, mesh)


def heads_repeated(size: int) -> int:
    """How often each head is there on so many devices. The output projection is as much smaller,
    so that attention is the same function of its input."""
    return max(1, size // HEADS)


def _filled(wide: Model, model: Model, times: int, mesh: Mesh) -> Model:
    """The abstract model with the other's parameters, its heads repeated, on the mesh."""
    given = dict(nnx.iter_graph(model))
    for path, parameter in nnx.iter_graph(wide):
        if isinstance(parameter, nnx.Variable):
            axes = parameter.get_metadata().get("axes") or ()
            value = _repeated(given[path].get_value(), axes, times)
            parameter.set_value(value / times if "o_proj" in path else value)
    shard(wide, mesh)
    return wide


def _repeated(value: Array, axes: tuple[str | None, ...], times: int) -> Array:
    for axis, name in enumerate(axes):
        if name in HEAD_AXES:
            before, after = value.shape[:axis], value.shape[axis + 1 :]
            heads = value.reshape(*before, HEADS, -1, *after)
            repeated = jnp.repeat(heads, times, axis=axis)
            value = repeated.reshape(*before, times * value.shape[axis], *after)
    return value
