"""Flags of the eagle3-train commands that prepare a draft's training data."""

import argparse
from pathlib import Path
from typing import Any

from convert.command_line.parser import OneLineParser
from convert.files.json_object import parse_value
from serve.train.flags import (
    add_aux_layers_flag,
    add_conversation_flags,
    add_draft_config_flag,
    add_mesh_flags,
    add_target_flags,
    positive,
)


def add_regenerate_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add `eagle3-train regenerate`."""
    command = commands.add_parser(
        "regenerate",
        help="have the answers of conversations written by a served model",
        example="eagle3-train regenerate --data prompts.jsonl --url http://localhost:8000/v1 "
        "--output conversations.jsonl",
    )
    add = command.add_argument
    add(
        "--data",
        required=True,
        help='JSONL of {"messages": [...]} conversations, or what the extra `datasets` reads',
    )
    add("--split", default="train", help="of such a data set (default train)")
    add("--url", required=True, help="of an OpenAI endpoint: http://HOST:PORT/v1")
    add("--output", type=Path, required=True, help="JSONL of the new conversations")
    add("--resume", action="store_true", help="go on with that file")
    add("--model", help="its name there; default: the first that is served")
    add("--concurrency", type=positive, default=64, help="requests at a time (default 64)")
    add("--conversations", type=positive, metavar="N", help="the first N only")
    add("--max-tokens", type=positive, help="of an answer; default: what the endpoint allows")
    add("--temperature", type=float, default=0.7, help="of the answers (default 0.7)")
    add("--seed", type=int, default=0, help="of the first conversation; the next one has the next")
    add(
        "--extra-body",
        type=_json_object,
        metavar="JSON",
        help='more fields of each request: {"chat_template_kwargs": {"thinking": false}}',
    )


def add_features_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """Add `eagle3-train features`."""
    command = commands.add_parser(
        "features",
        help="write what a target shows a draft of a small data set, to train on more than once",
        example="eagle3-train features --target /models/Kimi-K2.5 --data conversations.jsonl "
        "--to /data/features",
    )
    command.add_argument("--to", type=Path, required=True, help="directory of the features")
    command.add_argument("--resume", action="store_true", help="go on with that directory")
    add_target_flags(command)
    add_conversation_flags(command, required=True)
    command.add_argument("--rows", type=positive, default=12, help="samples at a time (default 12)")
    add_aux_layers_flag(command)
    add_draft_config_flag(command)
    add_mesh_flags(command)
    # Only the aux layers of a draft's shape matter.
    command.set_defaults(
        init_from=None, draft_vocab=None, intermediate_size=None, attention=None, check=None
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = parse_value(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value
