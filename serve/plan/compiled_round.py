"""The engine's round for one GPU, compiled from shapes alone."""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.initial_state import initial_state
from eagle3_jax.engine.programs import PROGRAMS, Pair, flatten_model, shapes_of
from pallas_kernels import gpu
from pallas_kernels.aot import Program, compile_program
from serve.plan.kimi_k25 import Scheme, abstract_draft, abstract_target

AUX_LAYER_IDS = (0, 1, 2)
"""The inputs of the first three layers: the draft takes nothing from any further one."""


@dataclass(frozen=True)
class RoundShape:
    """One dense layer and moe_layers more; a batch of sequences, k drafts for each."""

    arch: str
    scheme: Scheme
    moe_layers: int
    batch: int = 16
    num_speculative_tokens: int = 3


def compile_round(shape: RoundShape) -> tuple[Program, list[jax.ShapeDtypeStruct]]:
    """The lean round program as the engine compiles it, and the shapes of all weights."""
    target = abstract_target(1 + shape.moe_layers, shape.scheme)
    draft = abstract_draft(AUX_LAYER_IDS)
    config = EngineConfig(
        num_speculative_tokens=shape.num_speculative_tokens,
        max_model_len=10240,
        max_num_seqs=shape.batch,
        page_size=64,
        batch_buckets=(shape.batch,),
    )
    state = jax.eval_shape(lambda: initial_state(target, draft, config, len(AUX_LAYER_IDS)))
    with gpu.assume(shape.arch):
        target_leaves, target_structure = flatten_model(target)
        draft_leaves, draft_structure = flatten_model(draft)
    pair = Pair(target_structure, draft_structure, AUX_LAYER_IDS)
    weights = shapes_of((target_leaves, draft_leaves))
    slots = jax.ShapeDtypeStruct((shape.batch,), jnp.int32)
    table = jax.ShapeDtypeStruct((shape.batch, config.pages_per_seq), jnp.int32)
    program = compile_program(
        shape.arch, partial(PROGRAMS["round"], pair), *weights, state, slots, table, donate=(2,)
    )
    return program, jax.tree.leaves(weights)
