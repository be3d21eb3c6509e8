"""The command eagle3-quantize."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.progress import ByteProgress
from convert.command_line.stopping import raise_on_signals, status_of
from convert.files.safetensors_files import open_checkpoint
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import ALL_FILES
from convert.hub.source import add_hub_flags, source_of
from convert.quantize.select import DRAFT_EXCLUDES, SCHEME_NAMES, TARGET_EXCLUDES

PROG = "eagle3-quantize"


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit status: 0, 2 for unusable flags or files, 130 or 143 after a signal."""
    options = parse_quantize_flags(sys.argv[1:] if argv is None else argv)
    # SIGTERM, as from a scheduler, should clean up like Ctrl-C.
    with raise_on_signals():
        try:
            (_compare if options.compare else _quantize)(options)
        except KeyboardInterrupt as stopped:
            print(f"{PROG}: stopped, nothing was written", file=sys.stderr)
            return status_of(stopped)
        except (OSError, ValueError) as error:
            print(f"{PROG}: error: {error}", file=sys.stderr)
            return 2
    return 0


def _quantize(options: argparse.Namespace) -> None:
    from convert.quantize.run import plan_text, prepare, write
    from convert.quantize.schemes import scheme_of

    job = prepare(
        find_checkpoint(source_of(options, options.source, options.revision), ALL_FILES),
        options.destination,
        scheme_of(options.scheme, options.group_size),
        exclude=options.exclude,
        exclude_style=options.exclude_style,
        vision=options.vision,
    )
    print(plan_text(job), flush=True)
    if not options.dry_run:
        console, total = Console(stderr=True), job.plan.bytes_read
        with ByteProgress(console, "quantising", total) as progress:
            write(job, progress.advance)


def _compare(options: argparse.Namespace) -> None:
    from convert.quantize.accept_change import accept_change, accept_text
    from convert.quantize.compare import compare, comparison_json, comparison_text

    first = find_checkpoint(source_of(options, options.source, options.revision))
    second = find_checkpoint(source_of(options, options.destination))
    comparison = compare(open_checkpoint(first), open_checkpoint(second))
    change = None
    if options.target:
        change = accept_change(
            find_checkpoint(source_of(options, options.target)),
            first,
            second,
            options.prompts,
            max_tokens=options.max_tokens,
            num_speculative_tokens=options.num_speculative_tokens,
        )
    if options.json:
        print(comparison_json(comparison, change))
        return
    print(comparison_text(comparison, options.limit))
    if change is not None:
        print(accept_text(change))


def parse_quantize_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line; errors exit with status 2 and one line."""
    parser = _build_parser()
    options = parser.parse_args(argv)
    _check(parser, options)
    return options


def _check(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    if options.compare and options.scheme:
        parser.error("--compare compares two existing checkpoints; drop --scheme")
    if not options.compare and not options.scheme:
        parser.error(f"--scheme is missing, one of {', '.join(SCHEME_NAMES)}")
    if bool(options.target) != bool(options.prompts):
        parser.error("--target and --prompts belong together")
    if not options.compare and (options.target or options.json):
        parser.error("--target, --prompts and --json belong to --compare")


def _build_parser() -> argparse.ArgumentParser:
    targets = "; ".join(
        f"{name}: {' '.join(patterns)}" for name, patterns in TARGET_EXCLUDES.items()
    )
    parser = OneLineParser(
        prog=PROG,
        description="Quantise a published checkpoint, file to file and without calibration, "
        "or compare two checkpoints.",
        example="eagle3-quantize /models/kimi-k2.5-eagle3 /models/my-draft-fp8 --scheme ptpc_fp8",
        epilog=f"Kept by default in drafts: {' '.join(DRAFT_EXCLUDES)}. In targets: {targets}. "
        "Embeddings, norms and routers are always kept.",
    )
    add_about_flags(parser)
    parser.add_argument(
        "source", metavar="SRC", help="checkpoint directory, or hub id (--compare: A)"
    )
    parser.add_argument(
        "destination", metavar="DST", type=Path, help="new directory (--compare: B, the reference)"
    )
    _add_quantize_flags(parser)
    _add_compare_flags(parser)
    add_hub_flags(parser)
    return parser


def _add_quantize_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("quantising")
    group.add_argument(
        "--scheme",
        choices=SCHEME_NAMES,
        help="as AMD Quark writes it; fp8_block as transformers does",
    )
    group.add_argument(
        "--group-size",
        type=int,
        metavar="32",
        help="with int4: a scale for 32 inputs, in the compressed-tensors form of Kimi-K2.5 "
        "(default: one for each output, in Quark's)",
    )
    group.add_argument(
        "--exclude",
        nargs="*",
        metavar="PATTERN",
        help="modules to keep, instead of the defaults below: a name, a shell pattern such as "
        "'*self_attn*', or re: and a regular expression; matched against the whole name, the name "
        "without language_model.model. and its last component",
    )
    group.add_argument(
        "--exclude-style",
        choices=("regex", "exact"),
        default="regex",
        help="how config.json names the kept modules: re: patterns, which vLLM needs since it "
        "calls fc model.fc (default), or every name as Quark does; fp8_block always writes names",
    )
    group.add_argument(
        "--vision", action="store_true", help="quantise vision tower and projector too"
    )
    group.add_argument("--dry-run", action="store_true", help="print the plan only")


def _add_compare_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("comparing")
    group.add_argument(
        "--compare",
        action="store_true",
        help="print the error of A's dequantised weights relative to B's, worst first",
    )
    group.add_argument("--limit", type=_positive, default=40, help="rows shown (default 40)")
    group.add_argument("--json", action="store_true", help="print everything as one JSON object")
    group.add_argument(
        "--target", help="A and B are drafts for it: also print their accept lengths"
    )
    group.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines for --target: a list of token ids, a string, or {"token_ids": [...]} or '
        '{"prompt": "..."}',
    )
    group.add_argument(
        "--max-tokens", type=_positive, default=64, help="of an answer, in tokens (default 64)"
    )
    group.add_argument(
        "--num-speculative-tokens",
        type=_positive,
        default=3,
        metavar="K",
        help="drafts a round (default 3)",
    )


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
