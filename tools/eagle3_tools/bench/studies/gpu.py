"""Measure the embedded pair on this machine's GPU: its round, its serving loop, its tokens.

Each part runs in its own process and adds a JSON line to the record when it ends. Then the CPU
answers the same requests; tokens that differ must be a tie (`equality/ties.py`). A round must
launch nothing but its program. `--dry-run` runs everything on a CPU; its times mean nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import jax
from rich.console import Console

from convert.command_line.options import COUNT
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.flags import add_shared, check_flags, use_embedded_pair
from eagle3_tools.bench.equality.ties import Difference, Scorer, describe
from eagle3_tools.bench.gpu.worker import (
    NO_GPU,
    BareRound,
    ServingLoop,
    Work,
    embedded_pair,
    held_out_requests,
    measure,
    use_full_precision,
    work,
)
from eagle3_tools.checks.check import print_lines
from eagle3_tools.checks.pool import Failure, run_each
from eagle3_tools.checks.record import Record
from eagle3_tools.kernel_bench.carry import THERE, carry
from serve.pair.loading import LoadedPair

PACKAGES = ("pallas_kernels", "eagle3_jax", "convert", "serve", "eagle3_tools")
NOT_CARRIED = (*THERE, "flax", "orbax-checkpoint", "tokenizers")
"""Packages that a machine for training already has: its flax fits its JAX, the others are large."""
PARTS = "round", "loop"
MODULES = ("eagle3_tools.bench.cli", "eagle3_tools.bench.studies.gpu")


def add_flags(parser: argparse.ArgumentParser) -> None:
    use_embedded_pair(parser)
    parser.set_defaults(check=_check)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="test the command on a CPU; measure nothing",
    )
    parser.add_argument("--crash", choices=PARTS, help="in a dry run, end the process of this part")
    parser.add_argument("--carry", metavar="DIR", help="write what a machine without network needs")
    parser.add_argument(
        "--batch", type=COUNT, default=8, metavar="N", help="sequences decoded together"
    )
    parser.add_argument(
        "--max-tokens", type=COUNT, default=32, metavar="N", help="tokens of an answer"
    )
    parser.add_argument(
        "--limit", type=float, default=240.0, metavar="S", help="seconds for one part"
    )
    parser.add_argument(
        "--num-speculative-tokens",
        dest="k",
        type=int,
        default=3,
        metavar="K",
        help="drafts a round, 1..8",
    )
    add_shared(parser, "--prompts", default=1)
    add_shared(parser, "--json")


def _check(flags: argparse.Namespace) -> None:
    check_flags(flags)
    if flags.crash and not flags.dry_run:
        raise ValueError("--crash rehearses a crash: it needs --dry-run")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Measure and compare; return 1 if a token or a launch is wrong, 2 without a GPU."""
    if flags.carry:
        carried = carry(Path(flags.carry), "eagle3_tools.bench gpu", PACKAGES, MODULES, NOT_CARRIED)
        print_lines(console, carried)
        return 0
    use_full_precision(dry_run=flags.dry_run)
    size = flags.k, flags.batch, flags.prompts, flags.max_tokens, flags.dry_run
    jobs = [Work(part, *size, crash=part == flags.crash) for part in PARTS]
    record = Record(Path(flags.json) if flags.json else None)
    record.begin()
    record.add("conditions", dry_run=flags.dry_run, **asdict(conditions()))
    holds, found = True, list[ServingLoop]()
    results = run_each(work, jobs, processes=1, limit_s=flags.limit)
    for job, result in zip(jobs, results, strict=True):
        if isinstance(result, Failure) and NO_GPU in result.reason:
            print(NO_GPU, file=sys.stderr)
            return 2
        record.add(job.part, holds=getattr(result, "holds", False), **asdict(result))
        print_lines(console, [f"{job.name}: {_line(result)}"])
        holds &= not isinstance(result, Failure) and result.holds
        found += [result] if isinstance(result, ServingLoop) else []
    for loop in found:
        # From here on this process computes the expected answers.
        jax.config.update("jax_platforms", "cpu")
        differences = differing(embedded_pair(), jobs[1], loop)
        record.add("tokens", differences=[asdict(one) for one in differences])
        holds &= print_result(console, len(loop.answers), differences)
    if flags.dry_run:
        console.print("a dry run on a CPU: its times mean nothing")
    record.add("bars", holds=holds)
    return 0 if holds else 1


def differing(pair: LoadedPair, job: Work, loop: ServingLoop) -> list[Difference]:
    """Compare the loop's answers with those of this process's device."""
    expected = measure(pair, job, traced=False)
    requests = held_out_requests(pair, job)
    longest = max(len(one.prompt_ids) for one in requests) + job.max_tokens
    scorer = Scorer(pair.target, longest, pair.eos_token_ids)
    return scorer.differences(requests, expected.answers, loop.answers)


def print_result(console: Console, answers: int, differences: Sequence[Difference]) -> bool:
    """Print the differences; return whether each is a tie."""
    wrong = [one for one in differences if one.cause is None]
    equal = answers - len(differences)
    ties = len(differences) - len(wrong)
    console.print(f"tokens: {equal} of {answers} answers are the CPU's, {ties} differ by a tie")
    for one in differences:
        console.print(f"  {'' if one.cause else 'WRONG: '}{describe(one)}", markup=False)
    return not wrong


def _line(result: BareRound | ServingLoop | Failure) -> str:
    if isinstance(result, Failure):
        return f"{result}"
    verdict = "nothing but the engine's programs" if result.holds else "MORE than its programs"
    foreign = result.launched.foreign if result.launched else []
    said = f"{verdict}: {', '.join(foreign)}" if foreign else verdict
    if isinstance(result, ServingLoop):
        return f"{result.tokens_per_s:.0f} tokens/s on {result.device}; launched {said}"
    return (
        f"{result.us:.0f} us a round, {result.kernels:.1f} kernels; {result.launched.programs} "
        f"programs in {result.rounds} rounds; launched {said}"
    )
