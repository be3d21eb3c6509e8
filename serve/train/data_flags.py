"""Flags of the commands of eagle3-train that make what a draft is trained on."""

import argparse
import json
from pathlib import Path
from typing import Any

from convert.command_line.parser import OneLineParser
from serve.train.flags import positive


def add_regenerate_command(commands: "argparse._SubParsersAction[OneLineParser]") -> None:
    """`eagle3-train regenerate`."""
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


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value
