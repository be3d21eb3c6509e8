"""Shapes of program inputs from the host, equal in every process of an engine."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.page_tiers import COPIED_PAGES
from eagle3_jax.engine.programs.compiled import shapes_of
from eagle3_jax.engine.programs.messages import Inputs
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import PAGE_COPIES, Program, ProgramKind
from eagle3_jax.sampling.token_mask import open_masks
from eagle3_jax.speculative.logit_control_rows import no_controls
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.tree import Tree


def input_shapes(
    config: EngineConfig, vocab_size: int, images: ImageLayout | None, program: Program
) -> Inputs:
    """Return shapes and dtypes of a program's inputs; replicas add a leading axis."""
    shapes, replicas = _own_shapes(config, vocab_size, images, program), config.data_parallel_size
    if replicas == 1:
        return shapes
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct((replicas, *x.shape), x.dtype), shapes)


def _own_shapes(
    config: EngineConfig, vocab_size: int, images: ImageLayout | None, program: Program
) -> Inputs:
    if program.kind in PAGE_COPIES:
        return (_int32(COPIED_PAGES),) * (1 + (program.kind is not ProgramKind.STAGE_PAGES))
    if program.kind is ProgramKind.HISTORY:
        return _int32(), _int32(config.max_model_len)
    if program.kind is ProgramKind.ENCODE:
        assert images and program.batch, "an engine with images, and arrays of a size"
        return (shapes_of(images.pack((), program.batch)),)
    if program.batch is None:
        chunk: Any = empty_chunk(config, images=images is not None)
        if program.takes_controls:
            mask = open_masks(vocab_size, 1, 1)[0]
            chunk = replace(chunk, logit_controls=no_controls(vocab_size), mask=mask)
        return (shapes_of(chunk),)
    batch = program.batch
    inputs: list[Any] = [_int32(batch), _int32(batch, config.pages_per_seq)]
    if program.widths is not None and config.adaptive:
        inputs.append(_int32(batch))
    if program.kind is ProgramKind.PROPOSE:
        inputs.append(shapes_of(open_masks(vocab_size, batch, 1)))
    if program.kind is ProgramKind.VERIFY:
        rows = config.verified_rows
        tree = Tree(_int32(batch, rows), _int32(batch, rows))
        looked_up = _int32(batch) if config.method.lookup else None
        chain = Drafts(_int32(batch, rows - 1), None, looked_up)
        inputs.append(tree if config.method.tree else chain)
        inputs.append(shapes_of(open_masks(vocab_size, batch, rows)))
    return tuple(inputs)


def _int32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
