"""Run samples through the target in batches, with progress; the command can be interrupted."""

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import ImageEncoder
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.packing import Features, PackedBatch, Sample, padded
from eagle3_jax.training.placement import Placement
from serve.train.data import ConversationSamples
from serve.train.draft_model import plan_draft
from serve.train.features import (
    Computed,
    Contents,
    check_same,
    path_of,
    write_samples,
)
from serve.train.samples import image_encoder, open_conversations, prepare_training


def write_features(options: argparse.Namespace) -> bool:
    """Write features of `options.data` to `options.to`; False if interrupted."""
    directory, tokenizer, prepared, place = prepare_training(options)
    aux_layer_ids = plan_draft(options, prepared.model).config.aux_layer_ids
    place.check_rows(options.rows)
    samples = open_conversations(options, tokenizer, prepared.model.config, directory)
    contents = Contents(
        Computed.by(options, prepared.model, aux_layer_ids, directory),
        data=samples.digest,
        samples=len(samples),
        file_samples=options.rows,
    )
    _check_directory(options, contents, prepared.model, samples)
    try:
        target = prepared.fill()
        encode = image_encoder(samples, target, directory)
        run = feature_pass(target, aux_layer_ids, options.prefill_chunk)
        _write(options, contents, samples, partial(_shown, options.rows, run, encode, place))
    except KeyboardInterrupt:
        return False
    return True


def _check_directory(
    options: argparse.Namespace, contents: Contents, target: Target, samples: ConversationSamples
) -> None:
    """Raise ValueError for a directory with other content, or a disk that is too small."""
    to: Path = options.to
    if to.exists() and any(to.iterdir()):
        if not options.resume:
            raise ValueError(f"{to} is not empty; add --resume or name another --to")
        check_same(to, Contents.read(to), contents)
    width = (len(contents.computed.aux_layer_ids) + 1) * target.config.hidden_size
    size = target.dtype.itemsize
    todo = [n for n in range(len(contents.files)) if not path_of(to, n).exists()]
    tokens = sum(int(samples.lengths[contents.files[n]].sum()) for n in todo)
    needed, free = tokens * width * size, shutil.disk_usage(_existing(to)).free
    print(f"{tokens:,} tokens, {needed / 1e9:.3g} GB")
    if needed > free:
        raise ValueError(f"{to}: {needed / 1e9:.3g} GB are needed, {free / 1e9:.3g} are free")


def _existing(path: Path) -> Path:
    return next(parent for parent in (path, *path.absolute().parents) if parent.exists())


def _write(
    options: argparse.Namespace,
    contents: Contents,
    samples: ConversationSamples,
    show: Callable[[int, list[Sample]], list[Sample]],
) -> None:
    longest, begun = int(samples.lengths.max()), False
    with Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=contents.samples)
        for number, numbers in enumerate(contents.files):
            path = path_of(options.to, number)
            if not path.exists():
                shown = show(longest, [samples[n] for n in numbers])
                if not begun:
                    contents.write(options.to)  # the target has run successfully
                write_samples(path, shown)
                begun = True
            progress.update(task, advance=len(numbers))


def _shown(
    rows: int,
    run: Callable[[PackedBatch], Features],
    encode: ImageEncoder | None,
    place: Placement,
    longest: int,
    samples: list[Sample],
) -> list[Sample]:
    """Return samples with their features, each in its own row: the pass skips padding."""
    blank = [Sample([], [])] * (rows - len(samples))
    alone = [padded(sample, longest) for sample in [*samples, *blank]]
    batch: PackedBatch = jax.tree.map(lambda *parts: np.concatenate(parts), *alone)
    if encode is not None:
        batch = encode(batch, [item for sample in samples for item in sample.images])
    found = jax.tree.map(np.asarray, run(place.batch(batch)))
    return [
        Sample(sample.token_ids, sample.wanted, Features(aux[:size], hidden[:size]))
        for sample, aux, hidden in zip(samples, *found, strict=False)
        if (size := len(sample.token_ids))
    ]
