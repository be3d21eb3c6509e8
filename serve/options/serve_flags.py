"""Command line of eagle3-serve: vLLM's names, and the SGLang aliases that have an effect here."""

import argparse
from collections.abc import Sequence

from convert.command_line.options import add_options
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.reading import add_config_flag, read_command
from serve.images import options as images
from serve.options import http
from serve.options.chat import ChatOptions
from serve.options.foreign import add_other_flags
from serve.options.hosts import HostFlags
from serve.options.operations import Operations
from serve.options.pair import ModelFlags, add_pair_flags
from serve.options.ray import RayFlags
from serve.options.serve_options import (
    DefaultsFlags,
    ServeOptions,
    TransferFlags,
    check_options,
)

GROUPS: dict[str, tuple[type, ...]] = {
    "chat": (ChatOptions,),
    "images": images.TABLES,
    "several hosts: the same command on each, but for its id": (HostFlags,),
    "several hosts by one command": (RayFlags,),
    "server": (ServeOptions,),
    "web": http.TABLES,
    "operations": (Operations,),
    "prefill and decode apart": (TransferFlags,),
}
"""Titles of groups in the help -> their tables of options."""


def parse_serve_flags(argv: Sequence[str]) -> tuple[ServeOptions, list[str]]:
    """Parse the command line into options and the names of flags or keys without effect.

    Errors exit the process with status 2 and one line.
    """
    return read_command(_build_parser(), argv, _read)


def _read(flags: argparse.Namespace) -> tuple[ServeOptions, list[str]]:
    options = check_options(flags)
    return options, [*flags.without_effect, *options.speculation.without_effect]


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-serve",
        description="OpenAI-compatible server for Kimi-K2.5 and MiniMax-M2.5 with EAGLE-3 drafts.",
        example="eagle3-serve /models/Kimi-K2.5-MXFP4 -tp 4 --speculative-config "
        '\'{"model": "/models/kimi-k2.5-eagle3-fp8", "num_speculative_tokens": 3}\'',
    )
    add_about_flags(parser)
    add_config_flag(parser)
    model = parser.add_argument_group("model")
    add_options(model, ModelFlags)
    add_options(model, DefaultsFlags)
    add_pair_flags(parser)
    for title, tables in GROUPS.items():
        group = parser.add_argument_group(title)
        for table in tables:
            add_options(group, table)
    add_other_flags(parser)
    return parser
