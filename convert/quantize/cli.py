"""The command eagle3-quantize."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from convert.command_line.options import COUNT, add_options, option
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.progress import ByteProgress
from convert.command_line.stopping import raise_on_signals, status_of
from convert.files.safetensors_files import open_checkpoint
from convert.hub.checkpoint import find_checkpoint
from convert.hub.files import ALL_FILES
from convert.hub.source import add_hub_flags, source_of
from convert.quantize.select import DRAFT_EXCLUDES, SCHEME_NAMES, TARGET_EXCLUDES

PROG = "eagle3-quantize"


@dataclass(frozen=True)
class PathFlags:
    """The two checkpoints."""

    source: str | None = option("SRC", "checkpoint directory, or hub id (--compare: A)")
    destination: Path | None = option("DST", "new directory (--compare: B, the reference)", Path)


@dataclass(frozen=True)
class QuantizeFlags:
    """The scheme, and the modules to quantise."""

    scheme: str | None = option(
        "--scheme", "AMD Quark's form; fp8_block: transformers'", choices=SCHEME_NAMES
    )
    group_size: int | None = option(
        "--group-size 32",
        "with int4: a scale for 32 inputs, in the compressed-tensors form of Kimi-K2.5 (default: "
        "one for each output, in Quark's)",
        int,
    )
    exclude: list[str] | None = option(
        "--exclude PATTERN",
        "modules to keep, instead of the defaults below: a name, a shell pattern such as "
        "'*self_attn*', or re: and a regular expression; matched against the whole name, the name "
        "without language_model.model. and its last component",
        nargs="*",
    )
    exclude_style: str = option(
        "--exclude-style",
        "how config.json names the kept modules: re: patterns, which vLLM needs since it calls fc "
        "model.fc (default), or every name as Quark does; fp8_block always writes names",
        choices=("regex", "exact"),
        default="regex",
    )
    vision: bool = option("--vision", "quantise vision tower and projector too")
    dry_run: bool = option("--dry-run", "print the plan only")


@dataclass(frozen=True)
class CompareFlags:
    """The comparison of two checkpoints."""

    compare: bool = option(
        "--compare", "print the error of A's dequantised weights relative to B's, worst first"
    )
    limit: int = option("--limit N", "rows to print", COUNT, default=40)
    json: bool = option("--json", "print everything as one JSON object")
    target: str | None = option(
        "--target MODEL", "target of the drafts A and B: also print their accept lengths"
    )
    prompts: Path | None = option(
        "--prompts FILE",
        'JSON lines for --target: a list of token ids, a string, or {"token_ids": [...]} or '
        '{"prompt": "..."}',
        Path,
    )
    max_tokens: int = option("--max-tokens N", "maximum tokens of an answer", COUNT, default=64)
    num_speculative_tokens: int = option(
        "--num-speculative-tokens K", "draft tokens per round", COUNT, default=3
    )


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
    add_options(parser, PathFlags)
    add_options(parser.add_argument_group("quantising"), QuantizeFlags)
    add_options(parser.add_argument_group("comparing"), CompareFlags)
    add_hub_flags(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())
