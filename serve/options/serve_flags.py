"""Flags of eagle3-serve: vLLM's names, and the SGLang aliases that have an effect here."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.reading import add_config_flag, read_command
from eagle3_jax.sampling.params import LOGPROBS_MODES
from serve.images.options import add_image_flags
from serve.kv_transfer.config import CONFIG_FLAG, KEY_FLAG, ROLE_FLAG, ROLES
from serve.options.chat import add_chat_flags
from serve.options.executor.ray import add_ray_flags
from serve.options.foreign.flags import add_other_flags
from serve.options.hosts import add_host_flags
from serve.options.http import add_http_flags
from serve.options.operations import add_operation_flags
from serve.options.pair import add_demo_flags, add_pair_flags
from serve.options.serve_options import SPEC_METRICS_LEVELS, ServeOptions, check_options
from serve.options.sources import add_model_argument


def parse_serve_flags(argv: Sequence[str]) -> tuple[ServeOptions, list[str]]:
    """Parse the command line into options and the names of flags or keys without effect.

    Errors exit the process with status 2 and one line.
    """
    return read_command(_build_parser(), argv, _read)


def _read(flags: argparse.Namespace) -> tuple[ServeOptions, list[str]]:
    options = check_options(flags)
    keys = [f"--speculative-config {key}" for key in options.speculation.without_effect]
    return options, [*flags.without_effect, *keys]


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-serve",
        description="OpenAI-compatible server for Kimi-K2.5 and MiniMax-M2.5 with EAGLE-3 drafts.",
        example="eagle3-serve /models/Kimi-K2.5-MXFP4 -tp 4 --speculative-config "
        '\'{"model": "/models/kimi-k2.5-eagle3-fp8", "num_speculative_tokens": 3}\'',
    )
    add_about_flags(parser)
    add_config_flag(parser)
    _add_model_flags(parser.add_argument_group("model"))
    add_pair_flags(parser)
    add_chat_flags(parser)
    add_image_flags(parser)
    add_host_flags(parser)
    add_ray_flags(parser)
    _add_server_flags(parser.add_argument_group("server"))
    add_http_flags(parser)
    add_operation_flags(parser)
    _add_transfer_flags(parser.add_argument_group("prefill and decode apart"))
    add_other_flags(parser)
    return parser


def _add_model_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add_model_argument(group)
    add_demo_flags(group)
    add("--served-model-name", nargs="+", default=[], metavar="NAME", help="names for clients")
    add(
        "--generation-config",
        default="auto",
        metavar="auto|vllm|MODEL",
        help="where sampling defaults come from: the checkpoint, nowhere (vllm), or another one",
    )
    add("--override-generation-config", metavar="JSON", help="sampling defaults, before those")
    add(
        "--sampling-defaults",
        choices=("model", "openai"),
        help="SGLang's: openai is vllm's nowhere",
    )


def _add_transfer_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        ROLE_FLAG,
        choices=ROLES,
        help="keep prompts' pages for other servers (producer), fetch theirs (consumer), or both",
    )
    group.add_argument(
        CONFIG_FLAG,
        metavar="JSON",
        help="vLLM's: kv_role, engine_id, kv_ip, kv_port, kv_connector_extra_config {producers, "
        "expiry_s, pull_timeout_s}",
    )
    group.add_argument(
        KEY_FLAG,
        type=Path,
        metavar="FILE",
        help="the key that producers and consumers share, of mode 0600, made as for "
        "--hosts-key-file; needed beyond loopback addresses",
    )


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--host", default="127.0.0.1", help="the address to listen on; 0.0.0.0: all of them")
    add("--port", "--server-port", type=int, default=8000, help="0: any free port")
    add(
        "--drain-timeout",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="for answers to end after SIGTERM or Ctrl-C",
    )
    add(
        "--per-request-spec-decode-metrics",
        choices=SPEC_METRICS_LEVELS,
        default="none",
        help="what responses say in metrics.speculative_decoding",
    )
    add(
        "--logprobs-mode",
        choices=LOGPROBS_MODES,
        default=LOGPROBS_MODES[0],
        help="of the model's own logits, or after all options",
    )
    add(
        "--seed",
        "--random-seed",
        type=int,
        metavar="N",
        help="makes the seeds of unseeded requests repeatable; default: they are random",
    )
