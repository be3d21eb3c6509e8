"""The engine's round, compiled for GPUs from shapes alone."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.programs.compiled import PairStructure, flatten_model, program, shapes_of
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.mesh import DATA, place, replicas
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_tools.aot import Program, compile_program
from eagle3_tools.plan.data.kimi_k25 import WeightScheme, abstract_draft, abstract_target
from pallas_kernels import gpu

AUX_LAYER_IDS = (0, 1, 2)
"""Inputs of the first three layers, so that the draft needs no later layer."""


@dataclass(frozen=True)
class RoundShape:
    """A round of one dense layer and moe_layers MoE layers, for a batch of sequences.

    With `lookup` it is as wide as up to 8 looked-up drafts need.
    """

    arch: str
    scheme: WeightScheme
    moe_layers: int
    batch: int = 16
    lookup: bool = False


@dataclass(frozen=True)
class CompiledRound:
    """A compiled round. weights: shapes of a device's part. state_bytes: donated by a device."""

    program: Program
    weights: list[jax.ShapeDtypeStruct]
    state_bytes: int


def compile_few_layers(shape: RoundShape) -> CompiledRound:
    """Compile the argmax round with three drafts for one GPU."""
    target = abstract_target(1 + shape.moe_layers, shape.scheme)
    draft = abstract_draft(AUX_LAYER_IDS)
    config = EngineConfig(
        num_speculative_tokens=3,
        max_model_len=10240,
        max_num_seqs=shape.batch,
        page_size=64,
        batch_buckets=(shape.batch,),
        num_lookup_tokens=8 if shape.lookup else 0,
    )
    kind = ProgramKind.ARGMAX_ROUND
    return abstract_round(shape.arch, target, draft, config, AUX_LAYER_IDS, kind=kind).compile()


@dataclass(frozen=True)
class AbstractRound:
    """A round before compilation: shapes of its arguments, `state` the donated one's index."""

    arch: str
    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    state: int = 2

    def compile(self) -> CompiledRound:
        """Compile the round. Raises the compiler's errors, RuntimeError if it is not installed."""
        compiled = compile_program(self.arch, self.function, *self.shapes, donate=(self.state,))
        return CompiledRound(
            compiled,
            device_parts(self.shapes[: self.state]),
            nbytes(device_parts(self.shapes[self.state])),
        )


def abstract_round(arch: str, *models: Any, **options: Any) -> AbstractRound:
    """Build `round_program` for a kind of GPU."""
    with gpu.assume(arch):
        return AbstractRound(arch, *round_program(*models, **options))


def round_program(
    target: Target,
    draft: Eagle3Draft | None,
    config: EngineConfig,
    aux_layer_ids: tuple[int, ...],
    mesh: Mesh | None = None,
    *,
    kind: ProgramKind = ProgramKind.ROUND,
    vision: VisionModel | None = None,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the round of max_num_seqs sequences, or a prefill of one chunk, and its shapes.

    The program is what the engine compiles for the current GPU. Models are abstract; on a mesh they
    are placed as `eagle3_jax.mesh.shard` defines. vision: tower of an engine that takes images,
    whose state has their features.
    """
    target_leaves, target_structure = flatten_model(target, mesh)
    draft_leaves, draft_structure = flatten_model(draft, mesh) if draft else ((), None)
    pair = PairStructure(target_structure, draft_structure, aux_layer_ids, config.method)
    weights = shapes_of((target_leaves, draft_leaves))
    rows = ImageLayout.of(vision, target, draft, config).rows if vision else 0
    state = StateLayout(target, draft, config, len(aux_layer_ids), mesh, rows).shapes()
    inputs, widths = _batch(config), config.split_widths
    if kind in (ProgramKind.PREFILL, ProgramKind.ARGMAX_PREFILL):
        inputs, widths = (shapes_of(empty_chunk(config, images=vision is not None)),), None
    if mesh is not None:
        inputs = jax.tree.map(partial(_sent, mesh), inputs)
    function = program(kind, pair, *weights, state, *inputs, widths=widths)
    return function, (*weights, state, *inputs)


def _sent(mesh: Mesh, shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """Place an input of each replica, or of all devices."""
    if (count := replicas(mesh)) == 1:
        return place(shape, NamedSharding(mesh, PartitionSpec()))
    each = jax.ShapeDtypeStruct((count, *shape.shape), shape.dtype)
    return place(each, NamedSharding(mesh, PartitionSpec(DATA)))


def _batch(config: EngineConfig) -> tuple[Any, ...]:
    batch = config.max_num_seqs
    shapes = (batch,), (batch, config.pages_per_seq)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes)


def device_parts(tree: Any) -> list[jax.ShapeDtypeStruct]:
    """Return the shape of a device's part of each array."""

    def part(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        split = shape.sharding.shard_shape(shape.shape) if shape.sharding else shape.shape
        return jax.ShapeDtypeStruct(split, shape.dtype)

    return [part(shape) for shape in jax.tree.leaves(tree)]


def nbytes(shapes: Iterable[jax.ShapeDtypeStruct]) -> int:
    """Return the total bytes of arrays of these shapes."""
    return sum(prod(shape.shape) * shape.dtype.itemsize for shape in shapes)
