"""The flags of eagle3-generate."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from convert.command_line.options import add_options, flags_of, option, values_of
from convert.command_line.parser import OneLineParser, add_about_flags
from convert.command_line.reading import read_command
from convert.files.json_object import parse_value
from eagle3_jax.sampling.params import LOGPROBS_MODES, REQUEST_OPTIONS, SamplingParams
from serve.options.pair import ModelFlags, PairOptions, add_pair_flags, read_pair_options

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


@dataclass(frozen=True)
class PromptFlags:
    """The prompts."""

    prompt: list[str] | None = option("--prompt TEXT", "a prompt; may be repeated", action="append")
    prompts_file: list[str] | None = option(
        "--prompts-file FILE", "one prompt a line, or JSONL", action="append"
    )


@dataclass(frozen=True)
class FormFlags:
    """The form of answers: fields of StructuredOutputs."""

    json_schema: str | None = option(
        "--json-schema JSON", "schema of the answer; @FILE reads a file, here and below"
    )
    regex: str | None = option("--regex TEXT", "expression that the whole answer matches")
    choice: list[str] | None = option(
        "--choice TEXT", "a possible answer; may be repeated", action="append"
    )
    grammar: str | None = option("--grammar TEXT", "grammar of the answer, Lark or GBNF")


@dataclass(frozen=True, kw_only=True)
class GenerateOptions(PairOptions):
    """The command line as values.

    `sampling` has the given SamplingParams fields, `bad_words` is text, and `form` has the given
    StructuredOutputs field, if any.
    """

    prompts: tuple[str, ...]
    sampling: dict[str, Any]
    bad_words: tuple[str, ...]
    form: dict[str, Any]
    echo: bool = option("--echo", "put the prompt in front of the text")
    raw: bool = option("--raw", "send prompts as they are, without the chat template")
    json: bool = option("--json", "print one JSON object a line")


def parse_generate_flags(argv: Sequence[str]) -> GenerateOptions:
    """Read the command line; errors exit with status 2 and one line."""
    return read_command(_build_parser(), argv, _check)


def read_prompts(path: str) -> list[str]:
    """Read prompts one per line: JSON strings, objects with a field `prompt`, or plain text.

    `-` is standard input. Raises ValueError for a JSON line without a prompt.
    """
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    return [_read_line(line, path) for line in text.splitlines() if line.strip()]


def _read_line(line: str, path: str) -> str:
    if not line.startswith(("{", '"')):
        return line
    try:
        entry = parse_value(line)
    except ValueError:
        return line
    prompt = entry.get("prompt") if isinstance(entry, dict) else entry
    if not isinstance(prompt, str):
        raise ValueError(f'{path}: a JSON line must have a string "prompt"; got {line[:80]}')
    return prompt


def _check(flags: argparse.Namespace) -> GenerateOptions:
    prompts = list(flags.prompt or ())
    for path in flags.prompts_file or ():
        prompts += read_prompts(path)
    if not prompts:
        raise ValueError("give at least one --prompt or a --prompts-file that has some")
    if not flags.json and (flags.logprobs is not None or flags.prompt_logprobs is not None):
        raise ValueError("--logprobs and --prompt-logprobs are printed with --json only")
    return GenerateOptions(
        **read_pair_options(flags),
        **values_of(GenerateOptions, flags),
        prompts=tuple(prompts),
        sampling=read_sampling_flags(flags),
        bad_words=tuple(flags.bad_words),
        form=_read_form(flags),
    )


def _read_form(flags: argparse.Namespace) -> dict[str, Any]:
    named = flags_of(FormFlags)
    given = {name: value for name in named if (value := getattr(flags, name)) is not None}
    if len(given) > 1:
        listed = ", ".join(named[name] for name in given)
        raise ValueError(f"an answer has one form; got {listed}")
    return {name.removesuffix("_schema"): _read_text(value) for name, value in given.items()}


def _read_text(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    return Path(value[1:]).read_text(encoding="utf-8")


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-generate",
        description="Generates offline with a target and its draft. Text goes to standard output.",
        example="eagle3-generate --demo --prompt 'What is 95 + 61?' --num-speculative-tokens 3",
    )
    add_about_flags(parser)
    for table in (ModelFlags, PromptFlags, FormFlags, GenerateOptions):
        add_options(parser, table)
    add_sampling_flags(parser)
    add_pair_flags(parser, keys=True)
    return parser
