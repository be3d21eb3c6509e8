"""`eagle3-train draft`: train a draft on the features of a served target."""

import argparse
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from convert.published.parameters import abstract_draft
from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import count_batches, packed_batches
from eagle3_jax.training.distillation import TargetHead
from eagle3_jax.training.draft import (
    DraftModels,
    DraftRecipe,
    draft_step,
    draft_update,
    split_draft,
)
from eagle3_jax.training.features import feature_pass, known_features
from eagle3_jax.training.loop import Evaluation, StepFunction, TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.placement import Placement, with_whole_embedding
from serve.train.draft_model import (
    DraftPlan,
    export_draft,
    make_draft,
    plan_draft,
)
from serve.train.evaluation import ServedAcceptance, evaluation_prompts
from serve.train.run import new_output, run
from serve.train.samples import Data, image_encoder, open_samples, prepare_training


def train_draft(options: argparse.Namespace) -> bool:
    """Train a draft for `options.target` and write its directory; False if interrupted."""
    with new_output(options):
        finished = _train(options)
    if options.coordinator_address:
        jax.distributed.shutdown()  # It waits: a process that ends before others aborts them.
    return finished


def _train(options: argparse.Namespace) -> bool:
    if options.coordinator_address:
        jax.distributed.initialize(
            options.coordinator_address, options.num_processes, options.process_id
        )
    directory, tokenizer, prepared, placement = prepare_training(options)
    plan = plan_draft(options, prepared.model)
    placement.check(abstract_draft(plan.config, jnp.float32), options.rows)
    prompts = _prompts(options, tokenizer, prepared.model.config)
    samples = open_samples(options, tokenizer, prepared.model, plan.config.aux_layer_ids, directory)
    _set_epochs(options, samples)
    if options.features and not options.eval_every:  # then nothing runs the layers
        prepared = replace(prepared, shared={*prepared.shared, "layers"})
    trainer = _trainer(options, plan, prepared.fill(), samples, placement)
    batches = packed_batches(
        samples,
        options.rows * options.accumulate,
        options.row_length,
        seed=options.seed,
        epochs=options.epochs,
        encode=image_encoder(samples, trainer.target, directory),
    )
    evaluation = _evaluation(options, trainer, tokenizer, prompts)
    outcome, checkpoints = run(options, trainer.state, trainer.step, batches, evaluation)
    if outcome.step < options.steps:
        return False
    best = checkpoints.best_step
    found = checkpoints.restore(outcome.state, best) if best is not None else None
    params = outcome.state.params if found is None else found.state.params
    options.output.mkdir(parents=True, exist_ok=True)
    export_draft(trainer.draft(params), trainer.target, plan.shared, options.output)
    return True


def _set_epochs(options: argparse.Namespace, samples: Data) -> None:
    """Set both options.steps and options.epochs, each from the other."""
    if options.steps is None:
        options.epochs = options.epochs or 1
        rows, length = options.rows * options.accumulate, options.row_length
        lengths, epochs = samples.lengths, options.epochs
        options.steps = count_batches(lengths, rows, length, seed=options.seed, epochs=epochs)
    else:
        options.epochs = options.steps  # more than enough


@dataclass(frozen=True)
class Trainer:
    """A target, and its draft split into parts for training."""

    target: Target
    shared: set[str]
    graphdef: Any
    rest: Any
    state: TrainState
    step: StepFunction

    def draft(self, params: Any) -> Eagle3Draft:
        """Return the draft with these parameters, and the target's shared modules."""
        draft = nnx.merge(self.graphdef, params, self.rest)
        for name in self.shared:
            setattr(draft, name, getattr(self.target, name))
        return draft


def _trainer(
    options: argparse.Namespace, plan: DraftPlan, target: Target, samples: Data, place: Placement
) -> Trainer:
    draft = make_draft(plan, target, samples, options.seed)
    run_target = known_features
    if not options.features:
        run_target = feature_pass(target, plan.config.aux_layer_ids, options.prefill_chunk)
    kept = {"embed_tokens", *plan.shared}  # The draft's own embedding is not trained.
    graphdef, params, rest = split_draft(with_whole_embedding(draft, target), kept)
    params, rest = place.params(params), place.whole(rest)
    target_head, target_head_state = nnx.split(TargetHead(target))
    optimizer = adamw(options.learning_rate, options.steps, accumulate=options.accumulate)
    dtype = target.dtype
    described = DraftRecipe(
        options.unroll, options.step_decay, options.loss, dtype, options.keep_activations
    )
    update = draft_update(optimizer, DraftModels(graphdef, target_head), described)
    frozen = rest, place.whole(target_head_state)
    step = draft_step(update, run_target, frozen, place, options.accumulate)
    return Trainer(target, plan.shared, graphdef, rest, place.initial(optimizer, params), step)


def _prompts(
    options: argparse.Namespace, tokenizer: Tokenizer, config: TargetConfig
) -> list[list[int]]:
    """Return held-out prompts; ValueError if one with its answer exceeds the target's context."""
    if not options.eval_every:
        return []
    found = evaluation_prompts(tokenizer, options.eval_data, options.split, options.eval_prompts)
    longest, context = max(map(len, found)), config.max_position_embeddings
    if longest + options.eval_tokens > context:
        raise ValueError(
            f"a prompt of {longest} tokens and --eval-tokens {options.eval_tokens} are more than "
            f"the target's context of {context}"
        )
    return found


def _evaluation(
    options: argparse.Namespace, trainer: Trainer, tokenizer: Tokenizer, prompts: list[list[int]]
) -> Evaluation | None:
    if not options.eval_every:
        return None
    sizes = options.eval_drafts, options.eval_tokens, options.prefill_chunk
    served = ServedAcceptance(trainer.target, tokenizer, prompts, *sizes)
    dtype = trainer.target.dtype

    def measure(params: Any) -> dict[str, float]:
        # Round parameters as they will be written and served.
        written = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(dtype), params)
        return served.measure(trainer.draft(written))

    return Evaluation(measure, options.eval_every)
