"""What the flags of a command say is to be trained on."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.models.target import Target
from serve.demo import recipe
from serve.train.answers import SampleMaker
from serve.train.data import ConversationSamples, open_records
from serve.train.features.directory import Computed, FeatureSamples

Data = ConversationSamples | FeatureSamples | recipe.DemoSamples


def open_samples(
    options: argparse.Namespace,
    tokenizer: Tokenizer,
    target: Target,
    aux_layer_ids: Sequence[int],
    checkpoint: Path,
) -> Data:
    """Samples with features, conversations or the embedded corpus; says what is left out. target:
    may be abstract; checkpoint: its directory. Raises ValueError for what can't be trained on."""
    if options.features:
        samples = FeatureSamples(options.features, options.row_length)
        samples.check(Computed.by(options, target, aux_layer_ids, checkpoint))
        _say_left_out(samples.left_out, options, target.config)
        return samples
    if options.data is not None:
        return open_conversations(options, tokenizer, target.config)
    if options.row_length < recipe.ROW_LENGTH:
        raise ValueError(
            f"--row-length must be {recipe.ROW_LENGTH} or more: conversations of the corpus are as "
            f"long; got {options.row_length}"
        )
    return recipe.DemoSamples(_maker(options, tokenizer, target.config), options.seed)


def open_conversations(
    options: argparse.Namespace, tokenizer: Tokenizer, config: TargetConfig
) -> ConversationSamples:
    """Those of options.data that a row and the target's context can hold."""
    records = open_records(options.data, options.split)
    longest = min(options.row_length, config.max_position_embeddings)
    samples = ConversationSamples(records, _maker(options, tokenizer, config), longest)
    _say_left_out(samples.left_out, options, config)
    return samples


def _maker(options: argparse.Namespace, tokenizer: Tokenizer, config: TargetConfig) -> SampleMaker:
    ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *config.eos_token_ids)))
    return SampleMaker(tokenizer, ends, options.thinking)


def _say_left_out(count: int, options: argparse.Namespace, config: TargetConfig) -> None:
    if count:
        context = config.max_position_embeddings
        limits = f"--row-length {options.row_length} and the context of {context} tokens allow"
        print(f"note: {count} samples are longer than {limits}, and left out", file=sys.stderr)
