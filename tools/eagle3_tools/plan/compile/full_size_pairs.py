"""python -m eagle3_tools.plan.compile.full_size_pairs FOLDER: compile published pairs at full size.

FOLDER has their config.json files (tests/oracles/published). Needs the extra `rocm`, gcc and
binutils, no GPU. Exit status 1 if a program does not compile or does not meet its expectations.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from eagle3_tools.plan.cli import FILE_WIDTH
from eagle3_tools.plan.compile.flags import read_flags
from eagle3_tools.plan.compile.full_size_table import LIMIT_S, compile_full_size, print_full_size
from eagle3_tools.plan.options import PlanOptions, build_parser, read_options

PAIRS = (
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-fp8", "--arch=gfx950 -tp=4", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-fp8", "--arch=gfx950 -tp=8", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=4", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8", (3,)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 -dcp=8", (3,)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 --max-num-seqs=16", (3,)),
    (
        *("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla"),
        *("--arch=gfx950 -tp=8 -dcp=8 --max-num-seqs=16", (3,)),
    ),
    ("kimi-k2.5", "kimi-k2.5-eagle3", "--arch=gfx942 -tp=8", (3, 6)),
    ("kimi-k2.5-w4a8", "eagle3-kimik2.5-w4a8", "--arch=gfx942 -tp=8", (3, 6)),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8", (3,)),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8 -dcp=8", (3,)),
    ("minimax-m2.5", "minimax-m2.5-eagle3", "--arch=gfx950 -tp=4 --enable-expert-parallel", (3, 6)),
)
"""Target, draft, GPUs with parallelism, and drafts a round."""


def main(argv: Sequence[str] | None = None) -> int:
    flags = read_flags("full_size_pairs", __doc__, LIMIT_S, argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    every = list(full_size_options(flags.folder))
    results = list(compile_full_size(every, flags.limit))
    console = Console(width=None if sys.stdout.isatty() else FILE_WIDTH)
    return 0 if print_full_size(console, every, results) else 1


def full_size_options(folder: Path) -> Iterator[PlanOptions]:
    """Yield options as of eagle3-plan --compile: pages of 64 tokens, no images, and batch 64 unless
    a pair names another."""
    for target, draft, layout, counts in PAIRS:
        models = [f"--model={folder / target}.config.json", f"--draft={folder / draft}.config.json"]
        sizes = [*layout.split(), "--max-model-len=10240", "--block-size=64"]
        sizes.append("--language-model-only")
        for k in counts:
            flags = build_parser().parse_args([*models, *sizes, f"--num-speculative-tokens={k}"])
            yield read_options(flags)


if __name__ == "__main__":
    sys.exit(main())
