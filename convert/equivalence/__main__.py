"""The command `python -m convert.equivalence`."""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from convert.equivalence import __doc__ as description
from convert.equivalence.compare import RELATIVE_RMS, compare_layers
from convert.hub.checkpoint import find_checkpoint
from convert.hub.source import add_hub_flags, source_of


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 1 if a layer differs, 2 for unusable flags or files."""
    flags = _parser().parse_args(argv)
    try:
        random = np.random.default_rng(flags.seed)
        ids = random.integers(0, flags.vocabulary, flags.tokens).tolist()
        failed = []
        theirs = find_checkpoint(source_of(flags, flags.published, flags.revision))
        ours = find_checkpoint(source_of(flags, flags.converted)) if flags.converted else theirs
        for found in compare_layers(theirs, ours, flags.layers, ids):
            verdict = "equal" if found.acceptable else "DIFFERENT"
            print(
                f"{found.stage:>12}  largest {found.largest:.2e}  "
                f"relative rms {found.relative_rms:.2e}  {verdict}",
                flush=True,
            )
            failed += [] if found.acceptable else [found.stage]
    except (ImportError, OSError, ValueError) as error:
        print(f"convert.equivalence: error: {error}", file=sys.stderr)
        return 2
    if failed:
        print(f"different beyond relative rms {RELATIVE_RMS:g}: {', '.join(failed)}")
    return 1 if failed else 0


def _layers(text: str) -> list[int]:
    """Parse `0,5-7` as [0, 5, 6, 7]."""
    spans = (part.partition("-") for part in text.split(","))
    return [i for first, _, last in spans for i in range(int(first), int(last or first) + 1)]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -P -m convert.equivalence",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("published", help="directory or hub id that transformers reads")
    parser.add_argument(
        "converted", nargs="?", help="checkpoint that eagle3-jax reads; default: PUBLISHED"
    )
    add_hub_flags(parser)
    parser.add_argument("--layers", type=_layers, help="such as 0,1,30-32 (default: all)")
    parser.add_argument("--tokens", type=int, default=16, help="random tokens (default 16)")
    parser.add_argument(
        "--vocabulary", type=int, default=256, help="random token ids are below this number"
    )
    parser.add_argument("--seed", type=int, default=0)
    return parser


if __name__ == "__main__":
    sys.exit(main())
