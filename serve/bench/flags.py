"""The flags of eagle3-bench."""

import argparse
from collections.abc import Sequence
from importlib.metadata import version

from serve.bench.sweep.flags import add_sweep_flags
from serve.cache_flags import add_scale_flag
from serve.flags import OneLineParser
from serve.load_flags import DEFAULTS, add_load_flags, read_load_options
from serve.speculation_flags import check_num_speculative_tokens

COUNTS = ("repetitions", "generations", "requests", "prompts", "max_tokens", "seconds")
COUNTS += ("concurrency", "pages")


def parse_bench_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Reads the command line; ends the process with status 2 and one line for mistakes."""
    parser = _build_parser()
    flags = parser.parse_args(argv)
    try:
        _check(flags)
        flags.load = read_load_options(flags, has_draft=True) if flags.loads else DEFAULTS
    except ValueError as error:
        parser.error(str(error))
    return flags


def _check(flags: argparse.Namespace) -> None:
    if flags.demo and (flags.model or flags.draft):
        raise ValueError("--demo brings its own pair; leave MODEL and --draft out")
    if flags.command == "sweep":
        return
    if flags.model and not flags.draft:
        raise ValueError("MODEL needs a draft: --draft DIR")
    if flags.draft and not flags.model:
        raise ValueError("--draft needs the target it was made for: MODEL")
    if (
        flags.command in ("accept", "acceptance", "drafts", "choice", "grammar")
        and check_num_speculative_tokens(flags.k) == 0
    ):
        raise ValueError("--k must be at least 1: without drafts there is nothing to accept")
    if flags.command == "convert" and flags.gib <= 0:
        raise ValueError(f"--gib must be positive; got {flags.gib}")
    for name in COUNTS:
        value = getattr(flags, name, None)
        value = min(value) if isinstance(value, list) else value
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1; got {value}")
    _check_method(flags.command, getattr(flags, "rejection_sample_method", "coupled"))
    if flags.command == "accept":
        _check_accept(flags)


def _check_accept(flags: argparse.Namespace) -> None:
    if flags.temperature < 0:
        raise ValueError(f"--temperature must be 0 or more; got {flags.temperature}")
    if flags.url and (flags.model or flags.demo):
        raise ValueError("--url is a running server; leave MODEL, --draft and --demo out")
    if flags.max_tokens and not (flags.data or flags.url):
        raise ValueError("--max-tokens belongs to --data or --url")
    # Only here: flags are read before anything imports JAX.
    from eagle3_jax.speculative.tree_shape import tree_shape

    tree_shape(flags.eagle_topk, flags.num_draft_tokens, flags.k)


def _check_method(command: str, method: str) -> None:
    if method == "synthetic":
        raise ValueError(
            f"{command} judges what the model does: synthetic acceptance has nothing to do with it"
        )
    known = ("coupled", "standard") if command == "accept" else ("coupled",)
    if method not in known:
        listed = " or ".join(known)
        raise ValueError(f"--rejection-sample-method: {command} needs {listed}; got {method!r}")


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-bench", description="Measures this engine.", allow_abbrev=False
    )
    parser.set_defaults(loads=False)
    parser.add_argument("--version", action="version", version=version("eagle3-jax"))
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_cpu(commands.add_parser("cpu", help="all ratios of the CPU engine, one pinned core"))
    _add_accept(commands.add_parser("accept", help="accept length on held-out prompts"))
    _add_acceptance(
        commands.add_parser("acceptance", help="coupled acceptance beside theory; status 1 if off")
    )
    _add_equal(commands.add_parser("equal", help="count identical outputs; status 1 if any fails"))
    _add_drafts(commands.add_parser("drafts", help="BF16, FP8, INT4 and MLA drafts side by side"))
    _add_kv_cache(commands.add_parser("kv-cache", help="accuracy and accept length with fp8 KV"))
    _add_soak(commands.add_parser("soak", help="random traffic and cancels; status 1 on a leak"))
    _add_choice(commands.add_parser("choice", help="--adaptive beside k = 0 and a fixed k"))
    _add_grammar(commands.add_parser("grammar", help="answers with a schema; status 1 if wrong"))
    _add_convert(commands.add_parser("convert", help="eagle3-convert: memory, speed, kill -9"))
    add_sweep_flags(commands.add_parser("sweep", help="load on any OpenAI server, or ours started"))
    _add_report(commands.add_parser("report", help="sweeps as tables, figures and an HTML page"))
    _add_http(commands.add_parser("http", help="the server beside its engine offline"))
    return parser


def _add_cpu(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    parser.add_argument("--only", choices=("plain", "round"), help="one half of the benchmark")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument(
        "--prompts", type=int, default=20, metavar="N", help="held-out, a category, for accept"
    )
    parser.add_argument("--core", type=int, metavar="N", help="the core to run on; the last")
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=("default", "compiled"),
        default=("default", "compiled"),
        help="transformers' generate as it comes; with a static cache, torch.compile (needs g++) "
        "and batched experts; by default both, and the faster counts",
    )


def _add_accept(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    _add_loading(parser)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 1..8")
    parser.add_argument(
        "--eagle-topk", type=int, default=1, metavar="N", help="above 1: trees k levels deep"
    )
    parser.add_argument(
        "--num-draft-tokens", type=int, metavar="N", help="nodes of a tree that are verified"
    )
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    parser.add_argument("--prompts", type=int, default=40, metavar="N", help="a category, at most")
    _add_method(parser)
    parser.add_argument("--data", metavar="DIR", help="tasks: its *.jsonl files")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="of an answer; 160 (data: 512)")
    parser.add_argument("--url", metavar="URL", help="a running OpenAI server instead of a pair")
    parser.add_argument("--served-model-name", metavar="NAME", help="at URL; its first")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="at URL")


def _add_acceptance(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    _add_loading(parser)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 1..8")
    parser.add_argument("--prompts", type=int, default=16, metavar="N", help="a category")
    _add_method(parser)


def _add_method(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rejection-sample-method", default="coupled", metavar="NAME")


def _add_equal(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    _add_loading(parser)
    parser.add_argument("--quick", action="store_true", help="few prompts, one case of each kind")
    parser.add_argument("--prompts", type=int, metavar="N", help="a category; 40 (quick: 2)")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="64 (quick: 24)")
    _add_method(parser)


def _add_drafts(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 1..8")
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="a category")
    _add_method(parser)
    parser.add_argument(
        "--draft",
        dest="others",
        action="extend",
        nargs="+",
        default=[],
        metavar="DIR",
        help="other drafts of the embedded target",
    )
    parser.add_argument("--json", metavar="FILE", help="write the record there")


def _add_kv_cache(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    _add_loading(parser)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 1..8")
    parser.add_argument("--prompts", type=int, default=40, metavar="N", help="a category")
    factors = parser.add_mutually_exclusive_group()
    add_scale_flag(factors)
    factors.add_argument(
        "--measure", metavar="FILE", help="write factors for fp8 there, and compare nothing"
    )


def _add_soak(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("--seconds", type=float, default=600.0, help="length of the run")
    parser.add_argument("--concurrency", type=int, default=12, metavar="N", help="clients")
    parser.add_argument("--pages", type=int, default=65, metavar="N", help="few, to preempt")
    parser.add_argument("--prompts", type=int, default=20, metavar="N", help="a category")
    parser.add_argument("--json", metavar="FILE", help="write the record there")


def _add_choice(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("--k", type=int, default=3, help="the fixed k, and the most, 1..8")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument(
        "--requests", type=int, default=64, metavar="N", help="of a run; 32 a client if more"
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="N", help="clients"
    )
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="a category")
    parser.add_argument("--core", type=int, metavar="N", help="the servers' core; the last")
    parser.add_argument("--json", metavar="FILE", help="write the record there")


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("results", nargs="+", metavar="DIR", help="--output of sweeps")
    parser.add_argument("--output", metavar="DIR", help="for the page and figures; the first DIR")


def _add_http(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 0..8")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument(
        "--requests", type=int, default=64, metavar="N", help="of a run; 6 a client if more"
    )
    parser.add_argument(
        "--concurrency",
        type=int,
        nargs="+",
        default=[8, 32],
        metavar="N",
        help="clients; one alone comes first",
    )
    parser.add_argument("--prompts", type=int, default=8, metavar="N", help="a category")
    parser.add_argument("--json", metavar="FILE", help="write the record there")


def _add_grammar(parser: argparse.ArgumentParser) -> None:
    _add_shared(parser)
    _add_loading(parser)
    parser.add_argument("--k", type=int, default=3, help="drafts a round, 1..8")
    parser.add_argument("--generations", type=int, default=500, metavar="N")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N", help="of the timing")


def _add_convert(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(demo=True, model=None, draft=None)
    parser.add_argument("--gib", type=float, default=4.0, help="size of the synthetic checkpoint")
    parser.add_argument(
        "--directory", metavar="DIR", default=".", help="on the disk to measure; 3.5 times the size"
    )
    parser.add_argument("--repetitions", type=int, default=3, metavar="N")
    parser.add_argument("--json", metavar="FILE", help="write the record there")


def _add_loading(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(loads=True)
    add_load_flags(parser)


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="target checkpoint directory")
    parser.add_argument("--draft", metavar="DIR", help="draft checkpoint directory")
    parser.add_argument("--demo", action="store_true", help="the embedded pair: the default")
    parser.add_argument("--json", metavar="FILE", help="write the record there")
