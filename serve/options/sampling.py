"""Flags of the request options, under vLLM's names."""

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from convert.files.json_object import parse_value
from eagle3_jax.sampling.params import LOGPROBS_MODES, REQUEST_OPTIONS, SamplingParams

KINDS: Mapping[Any, dict[str, Any]] = {
    float: {"type": float},
    int: {"type": int},
    bool: {"action": "store_true"},
    str | list[str]: {"action": "append", "metavar": "TEXT"},
    list[int]: {"type": int, "nargs": "+", "metavar": "ID"},
}
"""Type of an option in request bodies -> arguments of its flag."""


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group; options that are not given are None, bad words ()."""
    unless = "What is left out is as the checkpoint's generation_config.json says, or does nothing."
    add = parser.add_argument_group("sampling", unless).add_argument
    written: dict[str, dict[str, Any]] = {
        "seed": {"type": int},
        "max_tokens": {"type": int},
        "skip_special_tokens": {"action": argparse.BooleanOptionalAction},
        "logit_bias": {"type": _read_bias, "metavar": "JSON"},
        "logprobs": {"type": int, "metavar": "N"},
        "prompt_logprobs": {"type": int, "metavar": "N"},
        "logprobs_mode": {"choices": LOGPROBS_MODES},
    }
    for name, row in REQUEST_OPTIONS.items():
        kind = written.get(name) or KINDS.get(row.json)
        if kind is not None:
            add(f"--{name.replace('_', '-')}", default=None, help=row.meaning, **kind)
    add("--bad-words", action="append", default=[], metavar="WORD", help="may be repeated")


def read_sampling_flags(flags: argparse.Namespace) -> dict[str, Any]:
    """Return the given SamplingParams fields; bad words are not tokenised yet."""
    given = {field.name: getattr(flags, field.name, None) for field in fields(SamplingParams)}
    return {name: value for name, value in given.items() if value is not None}


def _read_bias(text: str) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in parse_value(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        expected = "a JSON object of token ids and numbers"
        raise argparse.ArgumentTypeError(f"{expected} expected, got {text}") from error
