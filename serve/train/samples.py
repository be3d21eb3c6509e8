"""Open the target and the training data that a command's flags describe."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from convert import load_tokenizer, load_vision
from convert.abstract_model import AbstractModel
from convert.hub.checkpoint import check_roles, find_checkpoint
from convert.hub.source import source_of
from convert.load import holds_vision, prepare_target, prepare_vision
from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import ImageEncoder
from eagle3_jax.training.placement import Placement, training_mesh
from serve.chat_setup import set_up_images
from serve.images.options import ImageOptions
from serve.images.reader import ImageReader, NoImages
from serve.options.checkpoint import ACTIVATIONS
from serve.sandbox.sandbox import WHOLE_PROCESS
from serve.train.answers import SampleMaker
from serve.train.data import ConversationSamples, open_records
from serve.train.features import Computed, FeatureSamples

Data = ConversationSamples | FeatureSamples


def prepare_training(
    options: argparse.Namespace,
) -> tuple[Path, Tokenizer, AbstractModel[Target], Placement]:
    """Return the target's directory, tokenizer and abstract model, and the devices for it."""
    directory = find_checkpoint(source_of(options, options.target, options.revision))
    check_roles(directory, None)
    tokenizer = load_tokenizer(directory)
    mesh = training_mesh(
        options.data_parallel_size,
        options.tensor_parallel_size,
        enable_expert_parallel=options.enable_expert_parallel,
    )
    activations = ACTIVATIONS[options.quantize_activations]
    prepared = prepare_target(directory, mesh=mesh, quantize_activations=activations)
    return directory, tokenizer, prepared, Placement(mesh)


def open_samples(
    options: argparse.Namespace,
    tokenizer: Tokenizer,
    target: Target,
    aux_layer_ids: Sequence[int],
    checkpoint: Path,
) -> Data:
    """Open features or conversations, and report omitted samples.

    `target` may be abstract; `checkpoint` is its directory. Raises ValueError for unusable data.
    """
    if options.features is None:
        return open_conversations(options, tokenizer, target.config, checkpoint)
    samples = FeatureSamples(options.features, options.row_length)
    samples.check(Computed.by(options, target, aux_layer_ids, checkpoint))
    _say_left_out(samples.left_out, options, target.config)
    return samples


def open_conversations(
    options: argparse.Namespace, tokenizer: Tokenizer, config: TargetConfig, checkpoint: Path
) -> ConversationSamples:
    """Open the samples of options.data that fit into a row and the target's context."""
    records = open_records(options.data, options.split)
    longest = min(options.row_length, config.max_position_embeddings)
    ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *config.eos_token_ids)))
    maker = SampleMaker(tokenizer, ends, options.thinking, _images(options, checkpoint))
    samples = ConversationSamples(records, maker, longest)
    _say_left_out(samples.left_out, options, config)
    return samples


def image_encoder(samples: Data, target: Target, checkpoint: Path) -> ImageEncoder | None:
    """Load the encoder of the samples' images; None if they have no images."""
    placeholder = target.config.media_placeholder_token_id
    if not isinstance(samples, ConversationSamples) or not samples.has_images:
        return None
    assert placeholder is not None
    dtype = target.dtype
    return ImageEncoder(load_vision(checkpoint, dtype=dtype), placeholder, dtype)


def _images(options: argparse.Namespace, checkpoint: Path) -> ImageReader | NoImages:
    local: Path | None = options.allowed_local_media_path
    if local is not None and not local.is_dir():
        raise ValueError(f"--allowed-local-media-path {local} is no directory")
    given = ImageOptions(
        domains=tuple(options.allowed_media_domains), local_path=local and local.resolve()
    )
    vision = prepare_vision(checkpoint).model if holds_vision(checkpoint) else None
    return set_up_images(given, vision, WHOLE_PROCESS)


def _say_left_out(count: int, options: argparse.Namespace, config: TargetConfig) -> None:
    if count:
        context = config.max_position_embeddings
        limits = f"--row-length {options.row_length} and the context of {context} tokens allow"
        print(f"note: {count} samples are longer than {limits}, and left out", file=sys.stderr)
