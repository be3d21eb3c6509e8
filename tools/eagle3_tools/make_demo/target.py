"""Train a small target on the corpus."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
from flax import nnx

from convert import Tokenizer, load_tokenizer, save_hf
from eagle3_jax.config import TargetConfig
from eagle3_jax.models.targets import make_target
from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.loop import TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_tools.make_demo import recipe
from eagle3_tools.make_demo.training.target import target_step
from serve.train.answers import SampleMaker
from serve.train.run import new_output, run


def train_target(options: argparse.Namespace) -> bool:
    """Train the target and write its published directory; False if interrupted."""
    with new_output(options):
        return _train(options)


def _train(options: argparse.Namespace) -> bool:
    tokenizer = made_tokenizer(options.output, recipe.make_tokenizer)
    config = recipe.TARGETS[options.architecture]
    samples = recipe.DemoSamples(SampleMaker(tokenizer, tokenizer.eos_token_ids), options.seed)
    batches = packed_batches(samples, recipe.ROWS, recipe.ROW_LENGTH)
    target = make_target(config, rngs=nnx.Rngs(options.seed), dtype=jnp.float32)
    graphdef, params = nnx.split(target)
    optimizer = adamw(options.learning_rate, options.steps)
    state = TrainState(params, optimizer.init(params))
    outcome, _ = run(options, state, target_step(optimizer, graphdef), batches)
    if outcome.step < options.steps:
        return False
    save_hf(nnx.merge(graphdef, outcome.state.params), options.output)
    write_limits(options.output, config)
    return True


def made_tokenizer(directory: Path, make: Callable[[Path], object]) -> Tokenizer:
    """Return the tokenizer of an output directory, which `make` writes unless it is there."""
    directory.mkdir(parents=True, exist_ok=True)
    if not (directory / "tiktoken.model").exists():
        make(directory)
    return load_tokenizer(directory)


def write_limits(directory: Path, config: TargetConfig) -> None:
    """Write generation_config.json."""
    sampling = {
        "eos_token_id": list(config.eos_token_ids),
        "max_length": config.max_position_embeddings,
    }
    path = directory / "generation_config.json"
    path.write_text(f"{json.dumps(sampling, indent=2)}\n", encoding="utf-8")
