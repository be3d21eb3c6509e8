"""Trains a target or a draft: models, data and files around the training loop."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from convert import load_target, load_tokenizer, save_hf
from convert.hub.checkpoint import find_checkpoint
from convert.hub.flags import source_of
from eagle3_jax.config import (
    DraftConfig,
    KimiConfig,
    LatentShape,
    RopeConfig,
    TargetConfig,
    default_aux_layer_ids,
)
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target
from eagle3_jax.training.draft import draft_step, draft_vocabulary, split_draft
from eagle3_jax.training.loop import TrainState, train
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.training.target import target_step
from serve.demo import recipe
from serve.demo.training_data import read_samples, sample_batches

BatchAt = Callable[[int], PackedBatch]
COUNTED_BATCHES = 300
HEAD_DIM = 64


def train_target(options: argparse.Namespace) -> bool:
    """Trains the demo target and writes its published directory; False when interrupted."""
    _prepare(options)
    if not (options.output / "tiktoken.model").exists():
        recipe.make_tokenizer(options.output)
    batch_at = recipe.demo_batches(load_tokenizer(options.output), options.seed)
    graphdef, params = nnx.split(KimiTarget(recipe.TARGET, rngs=nnx.Rngs(options.seed)))
    optimizer = adamw(options.learning_rate, options.steps)
    state = TrainState(params, optimizer.init(params))
    params, done = _run(options, state, target_step(optimizer, graphdef), batch_at)
    if done:
        save_hf(nnx.merge(graphdef, params), options.output)
        eos_ids, longest = list(recipe.TARGET.eos_token_ids), recipe.TARGET.max_position_embeddings
        content = json.dumps({"eos_token_id": eos_ids, "max_length": longest}, indent=2)
        (options.output / "generation_config.json").write_text(f"{content}\n")
    return done


def train_draft(options: argparse.Namespace) -> bool:
    """Trains a draft for `options.target` and writes its published directory."""
    _prepare(options)
    directory = find_checkpoint(source_of(options, options.target, options.revision))
    tokenizer = load_tokenizer(directory)
    if options.data is None:
        batch_at = recipe.demo_batches(tokenizer, options.seed)
    else:
        samples = read_samples(options.data, tokenizer, options.row_length)
        batch_at = sample_batches(samples, options.rows, options.row_length, options.seed)
    target = load_target(directory, quantize_activations=False)
    draft = _new_draft(options, target, batch_at)
    graphdef, params, rest = split_draft(draft)
    target_graphdef, target_state = nnx.split(target)
    optimizer = adamw(options.learning_rate, options.steps)
    step = draft_step(optimizer, graphdef, target_graphdef, options.unroll)
    state = TrainState(params, optimizer.init(params))
    params, done = _run(options, state, step, batch_at, frozen=(rest, target_state))
    if done:
        trained = nnx.merge(graphdef, params, rest)
        trained.embed_tokens = target.embed_tokens
        save_hf(trained, options.output, shared_with=target)
    return done


def _prepare(options: argparse.Namespace) -> None:
    checkpoint = _checkpoint(options)
    if checkpoint.exists() and not options.resume:
        raise ValueError(
            f"{options.output} holds a training run; add --resume or name another --output"
        )
    options.output.mkdir(parents=True, exist_ok=True)


def _checkpoint(options: argparse.Namespace) -> Path:
    return options.output / "training" / "state.npz"


def _run(
    options: argparse.Namespace,
    state: TrainState,
    step: Any,
    batch_at: BatchAt,
    frozen: Any = None,
) -> tuple[Any, bool]:
    """The loop with its progress and log; returns the parameters and whether it finished."""
    log_path = _checkpoint(options).with_name("log.jsonl")
    log_path.parent.mkdir(parents=True, exist_ok=True)
    columns = BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with (
        log_path.open("a", buffering=1) as log,
        # A bar with the latest metrics; still on no terminal.
        Progress(*columns, TextColumn("{task.description}")) as progress,
    ):
        task = progress.add_task("", total=options.steps)

        def report(number: int, metrics: dict[str, float]) -> None:
            entry = {"step": number, "time": time.strftime("%H:%M:%S"), **metrics}
            log.write(json.dumps(entry) + "\n")
            text = "  ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            progress.update(task, completed=number, description=text)

        outcome = train(
            state,
            step,
            batch_at,
            frozen=frozen,
            steps=options.steps,
            checkpoint=_checkpoint(options),
            save_every=options.save_every,
            report=report,
            resume=options.resume,
        )
    return outcome.params, outcome.step >= options.steps


def _new_draft(options: argparse.Namespace, target: Target, batch_at: BatchAt) -> Eagle3Draft:
    config = target.config
    vocab = min(options.draft_vocab or recipe.DRAFT_VOCAB, config.vocab_size)
    draft_config = DraftConfig(
        vocab_size=config.vocab_size,
        draft_vocab_size=vocab,
        hidden_size=config.hidden_size,
        target_hidden_size=config.hidden_size,
        intermediate_size=options.intermediate_size or 4 * config.hidden_size,
        num_attention_heads=max(config.hidden_size // HEAD_DIM, 1),
        num_key_value_heads=max(config.hidden_size // HEAD_DIM, 1),
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        max_position_embeddings=config.max_position_embeddings,
        aux_layer_ids=options.aux_layers or _aux_layers(config),
        **_attention(options.attention, config),
    )
    draft = Eagle3Draft(
        draft_config, rngs=nnx.Rngs(options.seed + 1), embed_tokens=target.embed_tokens
    )
    if vocab < config.vocab_size:
        counts = _answer_counts(batch_at, config.vocab_size)
        draft.d2t.set_value(jnp.asarray(draft_vocabulary(counts, vocab)))
    return draft


def _attention(kind: str, target: TargetConfig) -> dict[str, Any]:
    """Rotary positions and, for latent attention, the target's widths."""
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
    """The usual triple, or an early, a middle and a late layer where a small model has it not."""
    usual = default_aux_layer_ids(config.num_hidden_layers)
    if usual[0] < usual[1] < usual[2]:
        return usual
    return (1, config.num_hidden_layers // 2, config.num_hidden_layers - 1)


def _answer_counts(batch_at: BatchAt, vocab_size: int) -> np.ndarray:
    """How often each id occurs in the answers of the first batches."""
    counts = np.zeros(vocab_size, np.int64)
    for step in range(COUNTED_BATCHES):
        batch = batch_at(step)
        counts += np.bincount(batch.token_ids[batch.wanted > 0], minlength=vocab_size)
    return counts
