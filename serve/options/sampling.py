"""The request options of docs/request-options.md as flags, under vLLM's names."""

import argparse
import json
from dataclasses import fields
from typing import Any

from eagle3_jax.sampling.params import SamplingParams
from serve.options.serve_options import LOGPROBS_MODES


def add_sampling_flags(parser: argparse.ArgumentParser) -> None:
    """Adds them as a group; whatever is left out is None, bad words ()."""
    add = parser.add_argument_group("sampling").add_argument
    add("--temperature", type=float, help="0 is greedy")
    add("--top-p", type=float)
    add("--top-k", type=int)
    add("--min-p", type=float)
    add("--seed", type=int, help="gives the same output again; drawn and reported if left out")
    add("--max-tokens", type=int, help="default: as long as the context allows")
    add("--min-tokens", type=int, help="no end before so many")
    add("--stop", action="append", metavar="TEXT", help="may be repeated")
    add("--stop-token-ids", type=int, nargs="+", metavar="ID")
    add("--ignore-eos", action="store_true", default=None)
    add("--include-stop-str-in-output", action="store_true", default=None)
    add(
        "--skip-special-tokens",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="leave them out of the text (the default)",
    )
    add("--logit-bias", type=_read_bias, metavar="JSON", help='as {"42": -1.5}')
    add("--allowed-token-ids", type=int, nargs="+", metavar="ID", help="all others are barred")
    add("--bad-words", action="append", default=[], metavar="WORD", help="may be repeated")
    add("--repetition-penalty", type=float, help="1 is off")
    add("--presence-penalty", type=float)
    add("--frequency-penalty", type=float)
    add("--logprobs", type=int, metavar="N", help="of each token and the N best, 0..20")
    add("--prompt-logprobs", type=int, metavar="N", help="the same of the prompt")
    add("--logprobs-mode", choices=LOGPROBS_MODES, help="the model's own, or after all options")


def read_sampling_flags(flags: argparse.Namespace) -> dict[str, Any]:
    """The SamplingParams fields that were given; bad words are still to be spelled."""
    given = {field.name: getattr(flags, field.name, None) for field in fields(SamplingParams)}
    return {name: value for name, value in given.items() if value is not None}


def _read_bias(text: str) -> dict[int, float]:
    try:
        return {int(token): float(bias) for token, bias in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError) as error:
        expected = "a JSON object of token ids and numbers"
        raise argparse.ArgumentTypeError(f"{expected} expected, got {text}") from error
