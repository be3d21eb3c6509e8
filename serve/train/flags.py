"""Flags of eagle3-train, and checks for contradictions."""

import argparse
from pathlib import Path

from convert.command_line.parser import OneLineParser
from convert.hub.source import add_hub_flags
from serve.options.checkpoint import ACTIVATIONS

TARGET_STEPS, DRAFT_STEPS = 4500, 460
SIGHT_STEPS, SIGHT_DRAFT_STEPS = 8000, 1500
SHAPE_FLAGS = ("draft_vocab", "aux_layers", "intermediate_size", "attention")
DRAFT_EXAMPLE = (
    "eagle3-train draft --target /models/Kimi-K2.5 --output /models/my-draft "
    "--data conversations.jsonl"
)


def add_target_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add `eagle3-train target`."""
    target = commands.add_parser(
        "target",
        help="train a small target on the synthetic corpus",
        example="eagle3-train target --output runs/target --steps 100",
    )
    _add_run_flags(target, 2e-3)
    target.add_argument("--steps", type=positive, default=TARGET_STEPS, help="of the optimiser")
    target.add_argument(
        "--architecture", choices=("kimi", "minimax"), default="kimi", help="whose, made small"
    )


def add_vision_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add `eagle3-train vision`."""
    vision = commands.add_parser(
        "vision",
        help="train a small pair that answers questions about pictures of shapes",
        example="eagle3-train vision --output runs/vision",
    )
    _add_run_flags(vision, 2e-3)
    vision.add_argument("--steps", type=positive, default=SIGHT_STEPS, help="of target and vision")
    vision.add_argument(
        "--draft-steps", type=positive, default=SIGHT_DRAFT_STEPS, help="of the draft, behind them"
    )
    vision.add_argument(
        "--eval-pictures",
        type=positive,
        default=400,
        help="held-out questions that are asked at the end (default 400)",
    )


def add_draft_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add `eagle3-train draft`."""
    draft = commands.add_parser(
        "draft", help="train an EAGLE-3 draft by training-time test", example=DRAFT_EXAMPLE
    )
    draft.set_defaults(demo_steps=DRAFT_STEPS, check=check_draft_flags)
    _add_run_flags(draft, 2e-3)
    length = draft.add_mutually_exclusive_group()
    length.add_argument(
        "--steps", type=positive, help=f"of the optimiser; default: an epoch, demo: {DRAFT_STEPS}"
    )
    length.add_argument("--epochs", type=positive, help="times that each sample comes")
    add_target_flags(draft)
    add_data_flags(draft)
    add_shape_flags(draft)
    _add_recipe_flags(draft)
    _add_evaluation_flags(draft)
    add_mesh_flags(draft)
    _add_host_flags(draft)


def check_draft_flags(options: argparse.Namespace) -> None:
    """Raise ValueError, naming the flags, if flags contradict each other."""
    given = [name for name in SHAPE_FLAGS if getattr(options, name) is not None]
    sources = [name for name in ("init_from", "draft_config") if getattr(options, name)]
    if len(sources) == 2 or (sources and given):
        names = ", ".join(f"--{name.replace('_', '-')}" for name in (*sources, *given))
        raise ValueError(f"one of these says what the draft's shape is: {names}")
    if options.eval_every and options.num_processes:
        raise ValueError("--eval-every runs an engine, and that in one process alone")
    if options.features and options.data:
        raise ValueError("one of these says what is trained on: --data, --features")
    if options.features and (options.thinking, options.split) != ("auto", "train"):
        raise ValueError("--thinking and --split are decided where --features are made")
    own = options.data is not None or options.features is not None
    if options.eval_every and own and options.eval_data is None:
        raise ValueError("--eval-every needs --eval-data: prompts that aren't trained on")
    if options.epochs and not own:
        raise ValueError(
            "--epochs needs --data or --features: the synthetic corpus has no end; use --steps"
        )
    distributed = options.coordinator_address, options.num_processes, options.process_id
    if len({part is None for part in distributed}) > 1:
        raise ValueError("--coordinator-address, --num-processes and --process-id go together")


def _add_run_flags(parser: argparse.ArgumentParser, rate: float) -> None:
    parser.add_argument("--output", type=Path, required=True, help="directory of the new model")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and data")
    parser.add_argument("--learning-rate", type=float, default=rate, help="at its highest")
    parser.add_argument("--save-every", type=positive, default=200, help="steps between saves")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--wandb", metavar="PROJECT", help="metrics go to Weights & Biases too")


def add_target_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", required=True, help="published target: directory, or hub id")
    add_hub_flags(parser)
    parser.add_argument(
        "--quantize-activations",
        choices=tuple(ACTIVATIONS),
        default="published",
        help="what quantised weights multiply, as for eagle3-serve",
    )
    parser.add_argument(
        "--prefill-chunk",
        type=positive,
        default=64,
        help="tokens that the target takes at a time, as in serving (default 64)",
    )


def add_data_flags(parser: argparse.ArgumentParser) -> None:
    add_conversation_flags(parser)
    parser.add_argument(
        "--features",
        type=Path,
        metavar="DIR",
        help="what `eagle3-train features` wrote, in place of --data: the target is not run",
    )


def add_conversation_flags(parser: argparse.ArgumentParser, *, required: bool = False) -> None:
    """Add flags of conversations and their conversion to samples."""
    default = "" if required else " (default: the synthetic corpus)"
    parser.add_argument(
        "--data",
        required=required,
        help='JSONL of {"messages": [...]} conversations, or what the extra `datasets` reads: a '
        f"directory or a hub id{default}",
    )
    parser.add_argument("--split", default="train", help="of such a data set (default train)")
    parser.add_argument(
        "--thinking",
        choices=("auto", "on", "off"),
        default="auto",
        help="on: before every answer; off: reasoning is left out; default: where there is some",
    )
    parser.add_argument("--row-length", type=positive, default=160, help="tokens of a packed row")
    parser.add_argument(
        "--allowed-local-media-path",
        type=Path,
        metavar="DIR",
        help="conversations may name images in it by file:// URLs; default: none",
    )
    parser.add_argument(
        "--allowed-media-domains",
        nargs="+",
        default=[],
        metavar="HOST",
        help="fetch images at http(s) URLs of these hosts; default: of none",
    )


def add_shape_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--init-from", metavar="DRAFT", help="begin with a draft's weights")
    add_draft_config_flag(parser)
    parser.add_argument(
        "--draft-vocab", type=positive, help="most frequent answer tokens to keep; default: all"
    )
    add_aux_layers_flag(parser)
    parser.add_argument(
        "--intermediate-size",
        type=positive,
        help="of the block behind attention; default: 4 x hidden size",
    )
    parser.add_argument(
        "--attention",
        choices=("grouped", "latent"),
        help="grouped: Llama's (default); latent: Kimi's, of the target's widths",
    )


def add_draft_config_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--draft-config",
        metavar="DRAFT",
        help="the shape of a published draft: its config.json, directory or hub id",
    )


def add_aux_layers_flag(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--aux-layers",
        type=_layers,
        help="before which target layers: 1,3,5; default: an early, a middle and a late one",
    )


def _add_recipe_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--unroll", type=positive, default=4, help="steps of the chain (default 4)")
    parser.add_argument(
        "--step-decay",
        type=_share,
        default=0.8,
        help="weight of a step of the chain over that of the one before (default 0.8)",
    )
    parser.add_argument(
        "--loss",
        choices=("kl", "tv", "lk"),
        default="kl",
        help="kl: cross-entropy with the target; tv: total variation, which bounds acceptance; lk: "
        "from the one to the other as acceptance grows",
    )
    parser.add_argument("--rows", type=positive, default=12, help="packed rows at a time")
    parser.add_argument(
        "--accumulate", type=positive, default=1, help="times --rows that make an update"
    )
    parser.add_argument(
        "--keep-activations",
        action="store_true",
        help="run no layer again in the backward pass: faster, where memory has room",
    )


def _add_evaluation_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--eval-every",
        type=positive,
        metavar="STEPS",
        help="measure the accept length in the engine, at temperature 0 and 1, and keep the best",
    )
    parser.add_argument(
        "--eval-data", help="conversations not in --data, whose last answers are asked for again"
    )
    parser.add_argument("--eval-prompts", type=positive, default=40, help="of them (default 40)")
    parser.add_argument(
        "--eval-tokens", type=positive, default=160, help="of an answer, at most (default 160)"
    )
    parser.add_argument(
        "--eval-drafts", type=positive, default=3, help="drafts a round (default 3)"
    )


def add_mesh_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags for the devices of one process."""
    parser.add_argument(
        "--tensor-parallel-size",
        type=positive,
        default=1,
        help="devices that share target and draft",
    )
    parser.add_argument(
        "--data-parallel-size",
        type=positive,
        default=1,
        help="as many times that number, each with its share of the rows",
    )
    parser.add_argument(
        "--enable-expert-parallel",
        action="store_true",
        help="each device holds whole experts, not a part of every one",
    )


def _add_host_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--coordinator-address", help="of process 0: host:port")
    parser.add_argument("--num-processes", type=positive, help="that run this command")
    parser.add_argument("--process-id", type=int, help="this one's number, from 0")


def positive(text: str) -> int:
    """Parse a number of at least 1."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _share(text: str) -> float:
    number = float(text)
    if not 0 < number <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, got {number}")
    return number


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))
