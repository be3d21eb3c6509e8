"""The command eagle3-train: a small target, or an EAGLE-3 draft for a target that speaks as Kimi.

In Kimi's chat tokens: by them it tells what the assistant says.
"""

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from convert.command_line.about import add_about_flags
from convert.command_line.parser import OneLineParser
from convert.command_line.stopping import Stopped, leave, leaving, raising, status_of
from convert.hub.flags import add_hub_flags

PROG = "eagle3-train"
EXAMPLE = (
    "eagle3-train draft --target /models/Kimi-K2.5 --output /models/my-draft "
    "--data conversations.jsonl"
)
TARGET_STEPS, DRAFT_STEPS = 4500, 460


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0; 2 for flags and files that can't be used; 130 or 143 when it was
    stopped."""
    options = _parser().parse_args(argv)
    # Importing JAX takes seconds, which a mistake in the flags shouldn't cost.
    with leaving(PROG):
        from serve.train.training import train_draft, train_target
    train = train_target if options.model == "target" else train_draft
    with raising() as came:
        try:
            done = train(options)
        except (ValueError, OSError) as error:
            print(f"{PROG}: {error}", file=sys.stderr)
            return 2
        except Stopped as stopped:
            leave(PROG, status_of(stopped))
    if not done:
        print(f"{PROG}: stopped; the same command with --resume goes on", file=sys.stderr)
    return 0 if done else 128 + (came or [signal.SIGINT])[0]


def _parser() -> OneLineParser:
    parser = OneLineParser(
        prog=PROG,
        description=__doc__,
        example=EXAMPLE,
    )
    add_about_flags(parser)
    models = parser.add_subparsers(dest="model", required=True)
    target = models.add_parser(
        "target",
        help="train the demo target on the synthetic corpus",
        example="eagle3-train target --output runs/target --steps 100",
    )
    _add_common(target, TARGET_STEPS, 2e-3)
    draft = models.add_parser(
        "draft",
        help="train an EAGLE-3 draft by training-time test",
        example=EXAMPLE,
    )
    _add_common(draft, DRAFT_STEPS, 2e-3)
    draft.add_argument("--target", required=True, help="published target: directory, or hub id")
    add_hub_flags(draft)
    draft.add_argument(
        "--data",
        type=Path,
        help='JSONL of {"messages": [...]} conversations (default: the synthetic corpus)',
    )
    draft.add_argument("--unroll", type=_positive, default=4, help="steps of the chain (default 4)")
    draft.add_argument(
        "--draft-vocab", type=_positive, help="most frequent answer tokens to keep; default: all"
    )
    draft.add_argument(
        "--aux-layers",
        type=_layers,
        help="before which target layers: 1,3,5; default: an early, a middle and a late one",
    )
    draft.add_argument(
        "--intermediate-size",
        type=_positive,
        help="of the block behind attention; default: 4 x hidden size",
    )
    draft.add_argument(
        "--attention",
        choices=("grouped", "latent"),
        default="grouped",
        help="grouped: Llama's; latent: Kimi's, of the target's widths",
    )
    draft.add_argument("--rows", type=_positive, default=12, help="packed rows a step")
    draft.add_argument("--row-length", type=_positive, default=160, help="tokens of a packed row")
    return parser


def _add_common(parser: argparse.ArgumentParser, steps: int, rate: float) -> None:
    parser.add_argument("--output", type=Path, required=True, help="directory of the new model")
    parser.add_argument("--steps", type=_positive, default=steps, help="of the optimiser")
    parser.add_argument("--seed", type=int, default=0, help="of first weights and data")
    parser.add_argument("--learning-rate", type=float, default=rate, help="at its highest")
    parser.add_argument("--save-every", type=_positive, default=200, help="steps between saves")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


def _layers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
