"""Load checkpoints into Flax models: targets, drafts and vision."""

import logging
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.typing import DTypeLike

from convert.abstract_model import AbstractModel, Activations, abstract_model, check_activations
from convert.fill import ParameterSource
from convert.hub.checkpoint import find_checkpoint
from convert.hub.source import Source
from convert.models.eagle3 import canonical_draft_name
from convert.models.vision import PARTS as VISION_PARTS
from convert.pairing import DraftForTarget, HeadChoice, check_target_ids
from convert.published.directory import Published, open_published, warn_of_unknown_fields
from convert.published.parameters import (
    abstract_draft,
    abstract_target,
    parse_config,
    plan_draft,
    plan_target,
    target_config_of,
)
from convert.published.vision import abstract_vision, has_vision, plan_vision, vision_config_of
from convert.published.weights import Int4OrderChoice, assumed_orders
from convert.store.reader import Store, is_store, open_store
from eagle3_jax.config import AuxIdConvention, DraftConfig
from eagle3_jax.mesh import mesh_of
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel

_LOG = logging.getLogger(__name__)


def load_target(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    quantize_activations: Activations = True,
) -> Target:
    """Load a target (Kimi-K2.5, DeepSeek-V3 or another supported model), published or converted.

    Args:
        path: a directory, or a Hugging Face hub id, which is downloaded. A `Source` is an id with a
            revision.
        dtype: type that float weights are cast to. By default it is bfloat16 and, on a CPU, float32
            except for kernels and embeddings that the files have in bfloat16: products widen them.
            Quantised weights are not cast.
        mesh: from `eagle3_jax.mesh.make_mesh`. Each device reads only the slices that it holds.
        quantize_activations: what quantised weights are multiplied with (see `Activations`).

    Raises:
        FileNotFoundError: files are missing.
        ValueError: anything in the checkpoint does not fit.
    """
    return prepare_target(
        path, dtype=dtype, mesh=mesh, quantize_activations=quantize_activations
    ).fill()


def prepare_target(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    quantize_activations: Activations = True,
) -> AbstractModel[Target]:
    """Build the checked abstract model that `load_target` fills, without reading weights."""
    check_activations(quantize_activations)
    model, source = open_target(path, run_dtype(dtype))
    # A converted checkpoint also holds the vision part, which `load_vision` loads.
    options = quantize_activations, mesh, VISION_PARTS
    return abstract_model(model, source, *options, keep_bfloat16=dtype is None)


def open_target(path: str | Path | Source, dtype: DTypeLike) -> tuple[Target, ParameterSource]:
    """Return a checkpoint's abstract model and parameter source; raises as `load_target`."""
    source = open_source(path)
    model = abstract_target(target_config_of(source), dtype)
    warn_of_unknown_fields(source.directory / "config.json", source.config)
    return model, source if isinstance(source, Store) else plan_target(source, model)


def load_draft(
    path: str | Path | Source,
    target: Target,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    quantize_activations: Activations = True,
    aux_id_convention: AuxIdConvention = "auto",
    lm_head: HeadChoice = "auto",
    int4_order: Int4OrderChoice = "auto",
    rope_theta: float | None = None,
    yarn_factor: float | None = None,
) -> Eagle3Draft:
    """Load an EAGLE-3 draft, published or converted, for `target`, which is not changed.

    The draft uses the target's embedding or head module if its files have none.

    Args:
        path: as in `load_target`.
        mesh: the target's mesh, or None, with which the draft's own parameters are not split.
        lm_head: "own" or "target" forces the choice of the head.
        int4_order: nibble order of Quark's INT4, which no file states. "auto" logs its assumption.
        rope_theta: overrides config.json, as does `yarn_factor`.

    Raises:
        ValueError: the draft was made for another target. Other errors are those of `load_target`.
    """
    return prepare_draft(
        path,
        target,
        dtype=dtype,
        mesh=mesh,
        quantize_activations=quantize_activations,
        aux_id_convention=aux_id_convention,
        lm_head=lm_head,
        int4_order=int4_order,
        rope_theta=rope_theta,
        yarn_factor=yarn_factor,
    ).fill()


def prepare_draft(
    path: str | Path | Source,
    target: Target,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    quantize_activations: Activations = True,
    aux_id_convention: AuxIdConvention = "auto",
    lm_head: HeadChoice = "auto",
    int4_order: Int4OrderChoice = "auto",
    rope_theta: float | None = None,
    yarn_factor: float | None = None,
) -> AbstractModel[Eagle3Draft]:
    """Build the checked abstract model that `load_draft` fills. `target` may be abstract too."""
    if mesh is not None and mesh != (found := mesh_of(target)):
        raise ValueError(f"a draft lies on its target's mesh, {found}, or on none; got {mesh}")
    check_activations(quantize_activations)
    weights_dtype = run_dtype(dtype)
    source = open_source(path, int4_order)
    layers = target.config.num_hidden_layers
    config = parse_config(
        source,
        lambda fields: DraftConfig.from_hf(
            fields, num_target_layers=layers, aux_id_convention=aux_id_convention
        ).with_rope(theta=rope_theta, yarn_factor=yarn_factor),
    )
    warn_of_unknown_fields(source.directory / "config.json", source.config)
    shapes = {canonical_draft_name(name): shape for name, shape in source.weight_shapes.items()}
    pair = DraftForTarget(source.directory, shapes, config, target.config)
    pair.check_dimensions()
    shared = pair.shared_modules(lm_head)
    draft = abstract_draft(config, weights_dtype)
    parameters = source if isinstance(source, Store) else plan_draft(source, draft, shared)
    if (offsets := parameters.read_target_offsets()) is not None:
        check_target_ids(source.directory, config, offsets)
    options = quantize_activations, mesh, shared
    found_draft = abstract_model(draft, parameters, *options, keep_bfloat16=dtype is None)
    for name in shared:
        setattr(draft, name, getattr(target, name))
    return found_draft


def open_source(
    path: str | Path | Source, int4_order: Int4OrderChoice = "auto"
) -> Published | Store:
    """Open either form of a checkpoint; log a warning for each assumed INT4 order."""
    source = _open(path, int4_order)
    if isinstance(source, Published):
        for assumed in assumed_orders(source.weights, int4_order):
            _LOG.warning("%s: assuming %s; see int4_order", source.directory, assumed)
    elif int4_order != "auto":
        raise ValueError(f"int4_order was decided when {path} was converted; leave it at auto")
    return source


def load_vision(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    split: bool = False,
) -> VisionModel:
    """Load the MoonViT tower and projector of a Kimi-K2.5 checkpoint, published or converted.

    `path` and `dtype` are as in `load_target`, which loads the text model; of a hub id all weights
    are downloaded. On a mesh every device holds the whole model, or with `split` a part of the
    heads and columns. `read_image` takes the model's `config`. Raises as `load_target`, and
    ValueError without vision.
    """
    return prepare_vision(path, dtype=dtype, mesh=mesh, split=split).fill()


def prepare_vision(
    path: str | Path | Source,
    *,
    dtype: DTypeLike | None = None,
    mesh: Mesh | None = None,
    split: bool = False,
) -> AbstractModel[VisionModel]:
    """Build the checked abstract model that `load_vision` fills, without reading weights."""
    source = _open(path)
    model = abstract_vision(vision_config_of(source), run_dtype(dtype), split=split)
    if not isinstance(source, Store):
        return abstract_model(model, plan_vision(source, model), True, mesh)
    if not holds_vision(path):
        raise ValueError(f"{source.directory} was converted without vision: convert it again")
    text = {stored.split(".")[0] for stored in source.parameters}.difference(VISION_PARTS)
    return abstract_model(model, source, True, mesh, text)


def holds_vision(path: str | Path | Source) -> bool:
    """Return whether a checkpoint describes vision and has its tensors; raises as `load_target`."""
    source = _open(path)
    if isinstance(source, Store):
        return any(stored.startswith(VISION_PARTS) for stored in source.parameters)
    return has_vision(source)


def run_dtype(dtype: DTypeLike | None) -> np.dtype:
    """Return the dtype of float weights; by default float32 on CPU, bfloat16 elsewhere."""
    default = jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    chosen = np.dtype(default if dtype is None else dtype)
    if not jnp.issubdtype(chosen, jnp.floating):
        raise ValueError(f"dtype must be a floating type such as bfloat16, got {chosen}")
    return chosen


def _open(path: str | Path | Source, int4_order: Int4OrderChoice = "auto") -> Published | Store:
    directory = find_checkpoint(path)
    if is_store(directory):
        return open_store(directory)
    return open_published(directory, int4_order=int4_order)
