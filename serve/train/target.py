"""`eagle3-train target`: train a small target on the embedded corpus."""

import argparse
import json

import jax.numpy as jnp
from flax import nnx

from convert import load_tokenizer, save_hf
from eagle3_jax.models.targets import make_target
from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.loop import TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.target import target_step
from serve.demo import recipe
from serve.train.answers import SampleMaker
from serve.train.run import new_output, run


def train_target(options: argparse.Namespace) -> bool:
    """Train the target and write its published directory; False if interrupted."""
    with new_output(options):
        return _train(options)


def _train(options: argparse.Namespace) -> bool:
    options.output.mkdir(parents=True, exist_ok=True)
    if not (options.output / "tiktoken.model").exists():
        recipe.make_tokenizer(options.output)
    tokenizer, config = load_tokenizer(options.output), recipe.TARGETS[options.architecture]
    make = SampleMaker(tokenizer, tokenizer.eos_token_ids)
    samples = recipe.DemoSamples(make, options.seed, finish=True)
    batches = packed_batches(samples, recipe.ROWS, recipe.ROW_LENGTH)
    target = make_target(config, rngs=nnx.Rngs(options.seed), dtype=jnp.float32)
    graphdef, params = nnx.split(target)
    optimizer = adamw(options.learning_rate, options.steps)
    state = TrainState(params, optimizer.init(params))
    outcome, _ = run(options, state, target_step(optimizer, graphdef), batches)
    if outcome.step < options.steps:
        return False
    save_hf(nnx.merge(graphdef, outcome.state.params), options.output)
    sampling = {
        "eos_token_id": list(config.eos_token_ids),
        "max_length": config.max_position_embeddings,
    }
    path = options.output / "generation_config.json"
    path.write_text(f"{json.dumps(sampling, indent=2)}\n")
    return True
