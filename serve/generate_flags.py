"""The flags of eagle3-generate."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from serve.flags import OneLineParser
from serve.load_flags import LoadOptions, add_load_flags, read_load_options
from serve.parallel_flags import ParallelOptions, add_parallel_flags, read_parallel_options
from serve.sampling_flags import add_sampling_flags, read_sampling_flags
from serve.speculation_flags import (
    DEFAULT_SPECULATIVE_TOKENS,
    check_acceptance,
    check_exact,
    check_num_speculative_tokens,
)

ACCEPTANCE_FLAGS = ("rejection_sample_method", "synthetic_acceptance_length")

FORM_FLAGS = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""Flags of the answer's form, with their names in StructuredOutputs."""


@dataclass(frozen=True)
class GenerateOptions:
    """The command line as values.

    `sampling` holds the SamplingParams fields that were given, but bad words, which are still text;
    `form` the StructuredOutputs field, if one was.
    """

    model: str | None
    draft: str | None
    load: LoadOptions
    parallel: ParallelOptions
    prompts: tuple[str, ...]
    num_speculative_tokens: int
    sampling: dict[str, Any]
    bad_words: tuple[str, ...]
    form: dict[str, Any]
    max_model_len: int | None
    raw: bool
    echo: bool
    json: bool
    exact: bool
    acceptance: dict[str, Any]


def parse_generate_flags(argv: Sequence[str]) -> GenerateOptions:
    """Reads the command line; ends the process with status 2 and one line for mistakes."""
    parser = _build_parser()
    flags = parser.parse_args(argv)
    try:
        return _check(flags)
    except (OSError, ValueError) as error:
        parser.error(str(error))


def read_prompts(path: str) -> list[str]:
    """Prompts one a line: JSON strings or objects with a field `prompt`, or plain text.

    `-` is standard input. Raises ValueError for a JSON line without a prompt.
    """
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    return [_read_line(line, path) for line in text.splitlines() if line.strip()]


def _read_line(line: str, path: str) -> str:
    if not line.startswith(("{", '"')):
        return line
    try:
        entry = json.loads(line)
    except json.JSONDecodeError:
        return line
    prompt = entry.get("prompt") if isinstance(entry, dict) else entry
    if not isinstance(prompt, str):
        raise ValueError(f'{path}: a JSON line must have a string "prompt"; got {line[:80]}')
    return prompt


def _check(flags: argparse.Namespace) -> GenerateOptions:
    if bool(flags.model) == flags.demo:
        raise ValueError("give one of MODEL, a checkpoint directory, and --demo")
    if flags.demo and flags.draft:
        raise ValueError("--demo brings its own draft; leave --draft out")
    prompts = list(flags.prompt)
    for path in flags.prompts_file:
        prompts += read_prompts(path)
    if not prompts:
        raise ValueError("give at least one --prompt or a --prompts-file that has some")
    if not flags.json and (flags.logprobs is not None or flags.prompt_logprobs is not None):
        raise ValueError("--logprobs and --prompt-logprobs are printed with --json only")
    k = flags.num_speculative_tokens
    has_draft = flags.demo or flags.draft
    if k is None:
        k = DEFAULT_SPECULATIVE_TOKENS if has_draft else 0
    # In exact mode k is also the width of plain decoding's program: no draft then, only rows.
    if check_num_speculative_tokens(k) and not has_draft and not flags.exact:
        raise ValueError("--num-speculative-tokens needs a draft: --draft DIR")
    return GenerateOptions(
        model=flags.model,
        draft=flags.draft,
        load=read_load_options(flags, has_draft=bool(has_draft) and k > 0),
        parallel=read_parallel_options(flags),
        prompts=tuple(prompts),
        num_speculative_tokens=k,
        sampling=read_sampling_flags(flags),
        bad_words=tuple(flags.bad_words),
        form=_read_form(flags),
        max_model_len=flags.max_model_len,
        raw=flags.raw,
        echo=flags.echo,
        json=flags.json,
        exact=flags.exact,
        acceptance=_check_acceptance(flags, k),
    )


def _check_acceptance(flags: argparse.Namespace, k: int) -> dict[str, Any]:
    given = {key: getattr(flags, key) for key in ACCEPTANCE_FLAGS}
    found = check_acceptance(given, k)
    check_exact(flags.exact, found)
    return found


def _read_form(flags: argparse.Namespace) -> dict[str, Any]:
    given = {name: getattr(flags, name) for name in FORM_FLAGS}
    given = {name: value for name, value in given.items() if value is not None}
    if len(given) > 1:
        listed = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise ValueError(f"an answer has one form; got {listed}")
    return {FORM_FLAGS[name]: _read_text(value) for name, value in given.items()}


def _read_text(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    return Path(value[1:]).read_text(encoding="utf-8")


def _build_parser() -> OneLineParser:
    parser = OneLineParser(
        prog="eagle3-generate",
        description="Generates offline with a target and its draft. Text goes to standard output.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--version", action="version", version=version("eagle3-jax"))
    add("model", metavar="MODEL", nargs="?", help="checkpoint directory")
    add("--demo", action="store_true", help="use the embedded pair")
    add("--draft", metavar="DIR", help="draft checkpoint directory")
    add("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--prompts-file", action="append", default=[], metavar="FILE", help="one a line, or JSONL")
    add("--num-speculative-tokens", type=int, metavar="K", help="0..8; 0 is plain decoding")
    add("--rejection-sample-method", metavar="NAME", help="coupled, standard or synthetic")
    add("--synthetic-acceptance-length", type=float, metavar="L", help="mean tokens a round")
    add("--json-schema", metavar="JSON", help="of the answer; @FILE reads a file, as below")
    add("--regex", metavar="TEXT", help="that the whole answer matches")
    add("--choice", action="append", metavar="TEXT", help="an answer; may be repeated")
    add("--grammar", metavar="TEXT", help="of the answer, as Lark or GBNF")
    add("--echo", action="store_true", help="put the prompt in front of the text")
    add("--max-model-len", type=int, metavar="N", help="prompt + answer, in tokens")
    add("--raw", action="store_true", help="send prompts as they are, without the chat template")
    add("--json", action="store_true", help="one JSON object a line")
    add("--exact", action="store_true", help="same bits as plain decoding")
    add_sampling_flags(parser)
    add_load_flags(parser)
    add_parallel_flags(parser)
    return parser
