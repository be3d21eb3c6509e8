"""The draft to train: its shape, initial weights and output directory."""

import argparse
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import multihost_utils

from convert import save_hf
from convert.abstract_model import AbstractModel
from convert.files.json_object import parse_object
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import CONFIG, CONFIG_ALONE
from convert.hub.source import Source, source_of
from convert.load import prepare_draft
from convert.models.config_json import draft_to_hf
from convert.pairing import DraftForTarget
from convert.published.directory import warn_of_unknown_fields
from eagle3_jax.config import (
    DraftConfig,
    KimiConfig,
    LatentShape,
    RopeConfig,
    TargetConfig,
    default_aux_layer_ids,
)
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.draft import draft_vocabulary
from serve.train.samples import Data

HEAD_DIM = 64


@dataclass(frozen=True)
class DraftPlan:
    """The draft before weights are read; `first` supplies its weights, None for random ones."""

    config: DraftConfig
    first: AbstractModel[Eagle3Draft] | None = None

    @property
    def shared(self) -> set[str]:
        """Modules that belong to the target and are not trained."""
        return {"embed_tokens"} if self.first is None else set(self.first.shared)


def plan_draft(options: argparse.Namespace, target: Target) -> DraftPlan:
    """Plan the draft that the flags describe; `target` may be abstract. ValueError for a misfit."""
    config, first = target.config, None
    if options.init_from:
        published = source_of(options, options.init_from)
        first = prepare_draft(published, target, dtype=jnp.float32)
        if any(isinstance(part, QuantizedKernel) for _, part in nnx.iter_graph(first.model)):
            raise ValueError(f"--init-from {options.init_from}: quantised weights can't be trained")
        chosen = first.model.config
    elif options.draft_config:
        chosen = _published_shape(source_of(options, options.draft_config), config)
    else:
        _check_aux_layers(options.aux_layers or (0,), config)
        chosen = _usual_shape(options, config)
    draft_to_hf(chosen, "bfloat16")
    return DraftPlan(chosen, first)


def make_draft(plan: DraftPlan, target: Target, samples: Data, seed: int) -> Eagle3Draft:
    """Make the draft in float32; a new draft's vocabulary has the most frequent ids of answers."""
    if plan.first is not None:
        return plan.first.fill()
    config = plan.config
    draft = Eagle3Draft(config, rngs=nnx.Rngs(seed + 1), embed_tokens=target.embed_tokens)
    if config.draft_vocab_size < config.vocab_size:
        counts = samples.counts(config.vocab_size)
        draft.d2t.set_value(jnp.asarray(draft_vocabulary(counts, config.draft_vocab_size)))
    return draft


def export_draft(draft: Eagle3Draft, target: Target, shared: set[str], directory: Path) -> None:
    """Write the published directory in the first process, without the target's `shared` modules."""
    own = nnx.state(draft)
    for path, variable in nnx.to_flat_state(own):
        if path[0] not in shared:
            variable.set_value(_on_host(variable.get_value()))
    nnx.update(draft, own)
    if jax.process_index() == 0:
        save_hf(draft, directory, shared_with=target)


def _on_host(array: jax.Array) -> jax.Array:
    if array.is_fully_addressable:
        return array
    return jnp.asarray(multihost_utils.process_allgather(array, tiled=True))


def _published_shape(given: Source, target: TargetConfig) -> DraftConfig:
    """Read the shape of a draft's config.json, given as a file, directory or hub id."""
    path = Path(given.name)
    if path.suffix != ".json":
        path = find_checkpoint(given, CONFIG_ALONE) / CONFIG
    try:
        published = parse_object(path.read_bytes())
        config = DraftConfig.from_hf(published, num_target_layers=target.num_hidden_layers)
        warn_of_unknown_fields(path, published)
        DraftForTarget(path.parent, {}, config, target).check_dimensions()
        if config.hidden_size != target.hidden_size:
            raise ValueError(
                f"its hidden size is {config.hidden_size}, the target's {target.hidden_size}, "
                "whose embedding it would use; begin with such a draft's weights (--init-from)"
            )
    except ValueError as error:
        raise ValueError(f"--draft-config {path}: {error}") from error
    return config


def _check_aux_layers(ids: tuple[int, ...], target: TargetConfig) -> None:
    last = target.num_hidden_layers
    if not all(0 <= layer <= last for layer in ids):
        given = ",".join(map(str, ids))
        raise ValueError(
            f"--aux-layers must be 0..{last} each, {last} for the last layer's output; got {given}"
        )


def _usual_shape(options: argparse.Namespace, config: TargetConfig) -> DraftConfig:
    heads = max(config.hidden_size // HEAD_DIM, 1)
    return DraftConfig(
        vocab_size=config.vocab_size,
        draft_vocab_size=min(options.draft_vocab or config.vocab_size, config.vocab_size),
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=options.intermediate_size or 4 * config.hidden_size,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        max_position_embeddings=config.max_position_embeddings,
        aux_layer_ids=options.aux_layers or _aux_layers(config),
        **_attention(options.attention or "grouped", config),
    )


def _attention(kind: str, target: TargetConfig) -> dict[str, Any]:
    """Return rotary positions and, for latent attention, the target's widths."""
    if kind == "grouped":
        return {"rope": RopeConfig(target.rope.theta)}
    if not isinstance(target, KimiConfig):
        raise ValueError(
            "--attention latent takes its widths from Kimi's latent attention, which this target "
            "has not: use --attention grouped"
        )
    widths = {field.name: getattr(target, field.name) for field in fields(LatentShape)}
    return {"rope": target.rope, "latent": LatentShape(**widths)}


def _aux_layers(config: TargetConfig) -> tuple[int, ...]:
    """Return the usual three layers, or early, middle and late ones of a small model."""
    usual = default_aux_layer_ids(config.num_hidden_layers)
    if usual[0] < usual[1] < usual[2]:
        return usual
    return (1, config.num_hidden_layers // 2, config.num_hidden_layers - 1)
