"""Options of eagle3-train's commands, and checks for contradictions."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.command_line.options import (
    COUNT,
    SHARE,
    add_options,
    flags_of,
    json_object,
    option,
)
from convert.hub.source import add_hub_flags
from serve.options.checkpoint import ACTIVATIONS

DRAFT_EXAMPLE = (
    "eagle3-train draft --target /models/Kimi-K2.5 --output /models/my-draft "
    "--data conversations.jsonl"
)
CONVERSATIONS = (
    'JSONL of {"messages": [...]} conversations, or a data set that the extra `datasets` reads: a '
    "directory or a hub id"
)
Commands = Any
"""The subparsers of eagle3-train."""


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


@dataclass(frozen=True)
class RunFlags:
    """A training run."""

    output: Path | None = option("--output DIR", "directory of the new model", Path, required=True)
    seed: int = option(
        "--seed N", "seed of initial weights and of the data's order", int, default=0
    )
    learning_rate: float = option("--learning-rate X", "highest learning rate", float, default=2e-3)
    save_every: int = option("--save-every STEPS", "steps between saves", COUNT, default=200)
    resume: bool = option("--resume", "continue from the last checkpoint")
    wandb: str | None = option("--wandb PROJECT", "send metrics to Weights & Biases too")


@dataclass(frozen=True)
class LengthFlags:
    """The length of a draft's training."""

    steps: int | None = option("--steps N", "of the optimiser; default: an epoch", COUNT)
    epochs: int | None = option("--epochs N", "times that each sample is used", COUNT)


@dataclass(frozen=True)
class TargetFlags:
    """The frozen target of a draft."""

    target: str | None = option(
        "--target MODEL", "published target: directory, or hub id", required=True
    )
    quantize_activations: str = option(
        "--quantize-activations",
        "activations that quantised weights multiply, as for eagle3-serve",
        default="published",
        choices=tuple(ACTIVATIONS),
    )
    prefill_chunk: int = option(
        "--prefill-chunk N", "tokens of a chunk of the target, as in serving", COUNT, default=64
    )


@dataclass(frozen=True)
class RequiredData:
    """The conversations of a command that needs some."""

    data: str | None = option("--data DATA", CONVERSATIONS, required=True)


@dataclass(frozen=True)
class DraftData:
    """The data that a draft is trained on."""

    data: str | None = option("--data DATA", CONVERSATIONS)
    features: Path | None = option(
        "--features DIR",
        "output of `eagle3-train features`, in place of --data; the target is not run",
        Path,
    )


@dataclass(frozen=True)
class ConversationFlags:
    """Conversations, and their conversion to samples."""

    split: str = option("--split NAME", "split of a data set that is not JSONL", default="train")
    thinking: str = option(
        "--thinking",
        "on: before every answer; off: leave reasoning out; default: before answers that have some",
        default="auto",
        choices=("auto", "on", "off"),
    )
    row_length: int = option("--row-length N", "tokens of a packed row", COUNT, default=160)
    allowed_local_media_path: Path | None = option(
        "--allowed-local-media-path DIR",
        "images that conversations may name by file:// URLs; default: none",
        Path,
    )
    allowed_media_domains: tuple[str, ...] = option(
        "--allowed-media-domains HOST",
        "hosts whose images are fetched from http(s) URLs; default: none",
        default=(),
        nargs="+",
    )


@dataclass(frozen=True)
class ShapeFlags:
    """The shape of a draft; only `aux_layers` matters to features."""

    draft_config: str | None = option(
        "--draft-config DRAFT",
        "copy the shape of a published draft: its config.json, directory or hub id",
    )
    init_from: str | None = option("--init-from DRAFT", "begin with a draft's weights")
    draft_vocab: int | None = option(
        "--draft-vocab N", "most frequent answer tokens to keep; default: all", COUNT
    )
    aux_layers: tuple[int, ...] | None = option(
        "--aux-layers I,J,K",
        "target layers whose inputs the draft sees, such as 1,3,5; default: an early, a middle and "
        "a late one",
        _layers,
    )
    intermediate_size: int | None = option(
        "--intermediate-size N", "width of the feed-forward block; default: 4 x hidden size", COUNT
    )
    attention: str | None = option(
        "--attention",
        "grouped: Llama's (default); latent: Kimi's, with the target's widths",
        choices=("grouped", "latent"),
    )


@dataclass(frozen=True)
class RecipeFlags:
    """The loss, and the size of a step."""

    unroll: int = option("--unroll N", "steps of the chain", COUNT, default=4)
    step_decay: float = option(
        "--step-decay X", "weight of a step relative to the one before", SHARE, default=0.8
    )
    loss: str = option(
        "--loss",
        "kl: cross-entropy with the target; tv: total variation, which bounds acceptance; lk: "
        "from the one to the other as acceptance grows",
        default="kl",
        choices=("kl", "tv", "lk"),
    )
    rows: int = option("--rows N", "packed rows at a time", COUNT, default=12)
    accumulate: int = option(
        "--accumulate N", "batches of --rows whose gradients make one update", COUNT, default=1
    )
    keep_activations: bool = option(
        "--keep-activations", "recompute no layer in the backward pass: faster, needs more memory"
    )


@dataclass(frozen=True)
class EvaluationFlags:
    """Evaluation in the engine."""

    eval_every: int | None = option(
        "--eval-every STEPS",
        "measure the accept length in the engine, at temperature 0 and 1, and keep the best draft",
        COUNT,
    )
    eval_data: str | None = option(
        "--eval-data DATA", "conversations not in --data, whose last answers are regenerated"
    )
    eval_prompts: int = option(
        "--eval-prompts N", "number of these conversations", COUNT, default=40
    )
    eval_tokens: int = option("--eval-tokens N", "maximum tokens of an answer", COUNT, default=160)
    eval_drafts: int = option("--eval-drafts N", "draft tokens per round", COUNT, default=3)


@dataclass(frozen=True)
class MeshFlags:
    """The devices of one process."""

    tensor_parallel_size: int = option(
        "--tensor-parallel-size N", "devices that share target and draft", COUNT, default=1
    )
    data_parallel_size: int = option(
        "--data-parallel-size N",
        "groups of --tensor-parallel-size devices, each with its share of the rows",
        COUNT,
        default=1,
    )
    enable_expert_parallel: bool = option(
        "--enable-expert-parallel", "give each device whole experts instead of a part of each"
    )


@dataclass(frozen=True)
class ProcessFlags:
    """Several processes."""

    coordinator_address: str | None = option(
        "--coordinator-address HOST:PORT", "address of process 0"
    )
    num_processes: int | None = option(
        "--num-processes N", "number of processes that run this command", COUNT
    )
    process_id: int | None = option("--process-id I", "number of this process, from 0", int)


@dataclass(frozen=True)
class RegenerateFlags:
    """An endpoint that answers conversations again."""

    url: str | None = option(
        "--url URL", "address of an OpenAI endpoint: http://HOST:PORT/v1", required=True
    )
    output: Path | None = option(
        "--output FILE", "JSONL of the new conversations", Path, required=True
    )
    resume: bool = option("--resume", "continue that file")
    model: str | None = option(
        "--model NAME", "name of the model at the endpoint; default: the first that it lists"
    )
    concurrency: int = option("--concurrency N", "requests at a time", COUNT, default=64)
    conversations: int | None = option(
        "--conversations N", "take only the first N conversations", COUNT
    )
    max_tokens: int | None = option(
        "--max-tokens N", "maximum tokens of an answer; default: the endpoint's limit", COUNT
    )
    temperature: float = option(
        "--temperature X", "sampling temperature of the answers", float, default=0.7
    )
    seed: int = option(
        "--seed N",
        "seed of the first conversation's answers; the next one has N + 1",
        int,
        default=0,
    )
    extra_body: dict[str, Any] | None = option(
        "--extra-body JSON",
        'more fields of each request, such as {"chat_template_kwargs": {"thinking": false}}',
        json_object,
    )


@dataclass(frozen=True)
class FeaturesFlags:
    """A directory of features."""

    to: Path | None = option("--to DIR", "directory of the features", Path, required=True)
    resume: bool = option("--resume", "continue the interrupted run in that directory")
    rows: int = option("--rows N", "samples at a time", COUNT, default=12)


def add_commands(commands: Commands) -> None:
    """Add the commands of eagle3-train with their options."""
    draft = commands.add_parser(
        "draft", help="train an EAGLE-3 draft by training-time test", example=DRAFT_EXAMPLE
    )
    draft.set_defaults(check=check_draft_flags)
    _add(draft, RunFlags)
    _add(draft.add_mutually_exclusive_group(), LengthFlags)
    add_hub_flags(draft)
    _add(draft, TargetFlags, DraftData, ConversationFlags, ShapeFlags, RecipeFlags)
    _add(draft, EvaluationFlags, MeshFlags, ProcessFlags)
    features = commands.add_parser(
        "features",
        help="write the target's features of a small data set, to train on them more than once",
        example="eagle3-train features --target /models/Kimi-K2.5 --data conversations.jsonl "
        "--to /data/features",
    )
    _add(features, FeaturesFlags, TargetFlags, RequiredData, ConversationFlags, MeshFlags)
    add_hub_flags(features)
    add_options(features, ShapeFlags, "draft_config", "aux_layers")
    features.set_defaults(init_from=None, draft_vocab=None, intermediate_size=None, attention=None)
    regenerate = commands.add_parser(
        "regenerate",
        help="have a served model answer the prompts of conversations again",
        example="eagle3-train regenerate --data prompts.jsonl --url http://localhost:8000/v1 "
        "--output conversations.jsonl",
    )
    _add(regenerate, RequiredData, RegenerateFlags)
    add_options(regenerate, ConversationFlags, "split")


def _add(parser: Any, *tables: type) -> None:
    for table in tables:
        add_options(parser, table)


def check_draft_flags(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the flags, if flags contradict each other."""
    given = [flag for name, flag in flags_of(ShapeFlags).items() if getattr(options, name)]
    if len(given) > 1 and (options.draft_config or options.init_from):
        raise ValueError(f"give only one of these for the draft's shape: {', '.join(given)}")
    if options.eval_every and options.num_processes:
        raise ValueError("--eval-every needs one process: its engine does not run in several")
    if options.features and options.data:
        raise ValueError("give --data or --features, not both")
    if not (options.features or options.data):
        raise ValueError(
            "give --data or --features; to try it out, `python -P -m eagle3_tools.make_demo corpus "
            "FILE` (extra `tools`) writes conversations for --data"
        )
    if options.features and (options.thinking, options.split) != ("auto", "train"):
        raise ValueError("--thinking and --split belong to the command that makes features")
    if options.eval_every and options.eval_data is None:
        raise ValueError("--eval-every needs --eval-data: prompts that aren't trained on")
    distributed = options.coordinator_address, options.num_processes, options.process_id
    if len({part is None for part in distributed}) > 1:
        raise ValueError("--coordinator-address, --num-processes and --process-id go together")
