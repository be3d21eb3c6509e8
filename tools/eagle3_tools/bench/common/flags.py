"""Flags that several studies share, and checks of their values."""

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from convert.command_line.options import COUNT, add_options, json_object
from convert.hub.source import add_hub_flags
from eagle3_jax.engine.config import EngineConfig
from serve.options.checkpoint import LoadOptions
from serve.options.pair import add_tokenizer_flags
from serve.options.parallel import read_parallel_options

SHARED: Mapping[str, Mapping[str, Any]] = {
    "--json": {"metavar": "FILE", "help": "write the results there as JSON"},
    "--repetitions": {"type": COUNT, "default": 5, "metavar": "N", "help": "of each measurement"},
    "--prompts": {"type": COUNT, "metavar": "N", "help": "held-out prompts a category"},
    "--core": {"type": int, "metavar": "N"},
}
"""Flags of several studies, as arguments of `add_argument`."""


def add_shared(parser: argparse.ArgumentParser, name: str, **own: Any) -> None:
    """Add a flag of SHARED; `own` overrides its arguments."""
    parser.add_argument(name, **{**SHARED[name], **own})


def add_pair_flags(
    parser: argparse.ArgumentParser, *, draft: bool = True, load: bool = True
) -> None:
    """Add flags of the pair and the record; `draft` adds those of a draft, `load` of loading."""
    parser.add_argument("model", metavar="MODEL", nargs="?", help="target directory, or hub id")
    if draft:
        parser.add_argument("--draft", metavar="DRAFT", help="draft directory, or hub id")
        parser.add_argument(
            "--speculative-config",
            type=json_object,
            metavar="JSON",
            help="the draft as vLLM's model and revision; k and method are the study's own",
        )
    add_hub_flags(parser, draft=draft)
    add_tokenizer_flags(parser)
    parser.add_argument(
        "--demo", action="store_true", help="use the small embedded model pair (the default)"
    )
    add_shared(parser, "--json")
    if load:
        parser.set_defaults(loads=True)
        add_options(parser.add_argument_group("loading"), LoadOptions)


def use_embedded_pair(parser: argparse.ArgumentParser) -> None:
    """Set the pair's flags for a study that measures the embedded pair only."""
    parser.set_defaults(demo=True, model=None, draft=None, tokenizer=None, tokenizer_revision=None)


def check_flags(flags: argparse.Namespace, methods: Collection[str] = ("coupled",)) -> None:
    """Raise ValueError for a bad pair, device or method; set `parallel` from its flags."""
    _read_draft(flags)
    check_demo(flags)
    if hasattr(flags, "tensor_parallel_size") and not hasattr(flags, "parallel"):
        flags.parallel = read_parallel_options(flags)
    if flags.model and not flags.draft:
        raise ValueError("MODEL needs a draft: --draft DIR")
    if flags.draft and not flags.model:
        raise ValueError("--draft needs the target it was made for: MODEL")
    _check_method(flags, methods)


def _read_draft(flags: argparse.Namespace) -> None:
    """Take the draft from --speculative-config if that is given; ValueError for other keys."""
    if (config := getattr(flags, "speculative_config", None)) is None:
        return
    own = {"model", "revision", "method"}
    if (others := sorted(set(config) - own)) or config.get("method", "eagle3") != "eagle3":
        given = ", ".join(others) or f"method {config['method']!r}"
        raise ValueError(
            f"--speculative-config: {flags.command} takes model, revision and method 'eagle3', "
            f"because k and method are its own; leave out {given}"
        )
    if flags.draft:
        raise ValueError("--speculative-config already names the draft; leave out --draft")
    flags.draft, flags.draft_revision = config.get("model"), config.get("revision")


def check_drafting(flags: argparse.Namespace, methods: Collection[str] = ("coupled",)) -> None:
    """Run `check_flags` for a study that needs drafts, and refuse k = 0."""
    check_flags(flags, methods)
    if EngineConfig(num_speculative_tokens=flags.k).num_speculative_tokens == 0:
        raise ValueError(
            "--num-speculative-tokens must be at least 1: without drafts there is nothing to accept"
        )


def check_demo(flags: argparse.Namespace) -> None:
    """Raise ValueError if --demo is combined with another pair."""
    if flags.demo and (flags.model or flags.draft):
        raise ValueError("--demo brings its own pair; leave MODEL and --draft out")


def _check_method(flags: argparse.Namespace, methods: Collection[str]) -> None:
    method = getattr(flags, "rejection_sample_method", "coupled")
    if method == "synthetic":
        raise ValueError(
            f"{flags.command} judges what the model does: synthetic acceptance has nothing to do "
            "with it"
        )
    if method not in methods:
        listed = " or ".join(methods)
        raise ValueError(
            f"--rejection-sample-method: {flags.command} needs {listed}; got {method!r}"
        )
