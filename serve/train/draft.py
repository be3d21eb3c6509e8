"""`eagle3-train draft`: a draft for a target that is served, on the target's own features."""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from convert import load_tokenizer
from convert.hub.checkpoint import find_checkpoint
from convert.hub.flags import source_of
from convert.hub.roles import check_roles
from convert.load import outline_target
from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import count_batches, packed_batches
from eagle3_jax.training.draft import (
    DraftModels,
    DraftRecipe,
    draft_step,
    draft_update,
    split_draft,
)
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.lesson import Teacher
from eagle3_jax.training.loop import Batches, Evaluation, StepFunction, TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.placement import Placement, training_mesh, with_whole_embedding
from serve.demo import recipe
from serve.options.checkpoint import ACTIVATIONS
from serve.train.answers import SampleMaker
from serve.train.data import ConversationSamples, open_records
from serve.train.draft_model import (
    DraftPlan,
    export_draft,
    make_draft,
    plan_draft,
)
from serve.train.evaluation import ServedAcceptance, evaluation_prompts
from serve.train.run import refuse_another_run, run

Data = ConversationSamples | recipe.DemoSamples


def train_draft(options: argparse.Namespace) -> bool:
    """Trains a draft for `options.target` and writes its published directory; False when
    interrupted."""
    refuse_another_run(options)
    if options.coordinator_address:
        jax.distributed.initialize(
            options.coordinator_address, options.num_processes, options.process_id
        )
    directory = find_checkpoint(source_of(options, options.target, options.revision))
    check_roles(directory, None)
    tokenizer = load_tokenizer(directory)
    placement = Placement(
        training_mesh(
            options.data_parallel_size,
            options.tensor_parallel_size,
            enable_expert_parallel=options.enable_expert_parallel,
        )
    )
    activations = ACTIVATIONS[options.quantize_activations]
    outlined = outline_target(directory, mesh=placement.mesh, quantize_activations=activations)
    plan = plan_draft(options, outlined.model)
    prompts = _prompts(options, tokenizer)
    samples = open_samples(options, tokenizer, outlined.model.config)
    batches = _batches(options, samples)
    trainer = _trainer(options, plan, outlined.fill(), samples, placement)
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


def open_samples(options: argparse.Namespace, tokenizer: Tokenizer, config: TargetConfig) -> Data:
    """What the flags say is to be trained on; says what is left out."""
    ends = tuple(dict.fromkeys((*tokenizer.eos_token_ids, *config.eos_token_ids)))
    make = SampleMaker(tokenizer, ends, options.thinking)
    if options.data is None:
        return recipe.DemoSamples(make, options.seed)
    records = open_records(options.data, options.split)
    samples = ConversationSamples(records, make, options.row_length)
    if samples.left_out:
        longer = f"{samples.left_out} samples are longer than --row-length {options.row_length}"
        print(f"note: {longer} and left out", file=sys.stderr)
    return samples


def _batches(options: argparse.Namespace, samples: Data) -> Batches:
    """With --epochs, options.steps becomes as many as there are."""
    rows, length, seed = options.rows * options.accumulate, options.row_length, options.seed
    if options.data is None:
        options.steps = options.steps or options.demo_steps
        return packed_batches(samples, rows, length)
    if options.steps is None:
        epochs = options.epochs or 1
        options.steps = count_batches(samples, rows, length, seed=seed, epochs=epochs)
        return packed_batches(samples, rows, length, seed=seed, epochs=epochs)
    return packed_batches(samples, rows, length, seed=seed, epochs=options.steps)


@dataclass(frozen=True)
class Trainer:
    """A target, and its draft taken apart for training."""

    target: Target
    shared: set[str]
    graphdef: Any
    rest: Any
    state: TrainState
    step: StepFunction

    def draft(self, params: Any) -> Eagle3Draft:
        """With these parameters, and modules of the target where they are its."""
        draft = nnx.merge(self.graphdef, params, self.rest)
        for name in self.shared:
            setattr(draft, name, getattr(self.target, name))
        return draft


def _trainer(
    options: argparse.Namespace, plan: DraftPlan, target: Target, samples: Data, place: Placement
) -> Trainer:
    draft = make_draft(plan, target, samples, options.seed)
    place.check(draft, options.rows)
    run_target = feature_pass(target, plan.config.aux_layer_ids, options.prefill_chunk)
    graphdef, params, rest = split_draft(with_whole_embedding(draft, target), plan.shared)
    params, rest = place.params(params), place.whole(rest)
    teacher, teacher_state = nnx.split(Teacher(target))
    optimizer = adamw(options.learning_rate, options.steps, accumulate=options.accumulate)
    dtype = target.embed_tokens.embedding.get_value().dtype
    described = DraftRecipe(options.unroll, options.step_decay, options.loss, dtype)
    update = draft_update(optimizer, DraftModels(graphdef, teacher), described)
    frozen = rest, place.whole(teacher_state)
    step = draft_step(update, run_target, frozen, place, options.accumulate)
    return Trainer(target, plan.shared, graphdef, rest, place.initial(optimizer, params), step)


def _prompts(options: argparse.Namespace, tokenizer: Tokenizer) -> list[list[int]]:
    if not options.eval_every:
        return []
    return evaluation_prompts(tokenizer, options.eval_data, options.split, options.eval_prompts)


def _evaluation(
    options: argparse.Namespace, trainer: Trainer, tokenizer: Tokenizer, prompts: list[list[int]]
) -> Evaluation | None:
    if not options.eval_every:
        return None
    sizes = options.eval_drafts, options.eval_tokens, options.prefill_chunk
    served = ServedAcceptance(trainer.target, tokenizer, prompts, *sizes)
    dtype = trainer.target.embed_tokens.embedding.get_value().dtype

    def measure(params: Any) -> dict[str, float]:
        # As it will be written, and then served.
        written = jax.tree.map(lambda x: x.astype(jnp.bfloat16).astype(dtype), params)
        return served.measure(trainer.draft(written))

    return Evaluation(measure, options.eval_every)
