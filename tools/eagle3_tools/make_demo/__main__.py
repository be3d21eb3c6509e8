"""Make the embedded pairs, and data for them: conversations, and pictures with questions."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from convert.command_line.options import COUNT, add_options, option
from convert.command_line.parser import OneLineParser, add_about_flags
from serve.train.cli import run_command
from serve.train.flags import RunFlags

PROG = "python -P -m eagle3_tools.make_demo"
HERE = "eagle3_tools.make_demo"
FUNCTIONS = {
    "target": f"{HERE}.target:train_target",
    "vision": f"{HERE}.vision:train_vision",
    "corpus": f"{HERE}.data:write_corpus",
    "pictures": f"{HERE}.data:write_pictures",
}


@dataclass(frozen=True)
class TargetFlags:
    """A small target for the corpus."""

    steps: int = option("--steps N", "optimiser steps", COUNT, default=4500)
    architecture: str = option(
        "--architecture",
        "architecture of the small model",
        default="kimi",
        choices=("kimi", "minimax"),
    )


@dataclass(frozen=True)
class VisionFlags:
    """A small pair that sees."""

    steps: int = option(
        "--steps N", "optimiser steps of target and vision part", COUNT, default=8000
    )
    draft_steps: int = option(
        "--draft-steps N", "optimiser steps of the draft", COUNT, default=1500
    )
    eval_pictures: int = option(
        "--eval-pictures N", "held-out questions to answer at the end", COUNT, default=400
    )


@dataclass(frozen=True)
class CorpusFlags:
    """Conversations of the corpus."""

    file: Path | None = option("FILE", "JSONL for eagle3-train draft --data", Path)
    conversations: int = option("--conversations N", "their number", COUNT, default=20_000)
    held_out: bool = option("--held-out", "conversations with other problems, for --eval-data")
    seed: int = option("--seed N", "other conversations", int, default=0)


@dataclass(frozen=True)
class PictureFlags:
    """Pictures that the vision pair was not trained on."""

    directory: Path | None = option("DIR", "directory for eagle3-bench accept --data", Path)
    count: int = option("--count N", "number of pictures", COUNT, default=20)
    seed: int = option("--seed N", "other pictures", int, default=0)


HELP: dict[str, tuple[str, tuple[type, ...]]] = {
    "target": ("train a small target on the corpus", (RunFlags, TargetFlags)),
    "vision": (
        "train a small pair that answers questions about pictures of shapes",
        (RunFlags, VisionFlags),
    ),
    "corpus": ("write conversations of the synthetic corpus", (CorpusFlags,)),
    "pictures": ("draw pictures of shapes, with questions about them", (PictureFlags,)),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status, as that of eagle3-train."""
    parser = OneLineParser(
        prog=PROG, description=__doc__, example=f"{PROG} corpus corpus.jsonl --conversations 1000"
    )
    add_about_flags(parser)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (meaning, tables) in HELP.items():
        command = commands.add_parser(name, help=meaning, description=meaning)
        for table in tables:
            add_options(command, table)
    return run_command(PROG, parser, argv, FUNCTIONS)


if __name__ == "__main__":
    sys.exit(main())
