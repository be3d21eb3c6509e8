"""The flags of eagle3-generate."""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from convert.one_line_parser import OneLineParser
from eagle3_jax.engine.config import EngineConfig
from serve.options.checkpoint import LoadOptions, add_load_flags, read_load_options
from serve.options.engine import add_engine_flags, read_engine_config
from serve.options.memory import MemoryShare, add_memory_flags, read_memory_share
from serve.options.parallel import ParallelOptions, add_parallel_flags, read_parallel_options
from serve.options.sampling import add_sampling_flags, read_sampling_flags
from serve.options.speculation import Speculation, read_speculation
from serve.options.spellings import parse_flags

FORM_FLAGS = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}
"""Flags of the answer's form, with their names in StructuredOutputs."""


@dataclass(frozen=True)
class GenerateOptions:
    """The command line as values.

    `sampling` holds the SamplingParams fields that were given, but bad words, which are still text;
    `form` the StructuredOutputs field, if one was. max_model_len: the engine's, None for what the
    prompts need.
    """

    model: str | None
    speculation: Speculation
    engine: EngineConfig
    max_model_len: int | None
    memory: MemoryShare | None
    load: LoadOptions
    parallel: ParallelOptions
    prompts: tuple[str, ...]
    sampling: dict[str, Any]
    bad_words: tuple[str, ...]
    form: dict[str, Any]
    raw: bool
    echo: bool
    json: bool


def parse_generate_flags(argv: Sequence[str]) -> GenerateOptions:
    """Reads the command line; ends the process with status 2 and one line for mistakes."""
    parser = _build_parser()
    flags = parse_flags(parser, argv)
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
    prompts = list(flags.prompt)
    for path in flags.prompts_file:
        prompts += read_prompts(path)
    if not prompts:
        raise ValueError("give at least one --prompt or a --prompts-file that has some")
    if not flags.json and (flags.logprobs is not None or flags.prompt_logprobs is not None):
        raise ValueError("--logprobs and --prompt-logprobs are printed with --json only")
    speculation = read_speculation(flags)
    engine = read_engine_config(flags, speculation)
    proposes = bool(flags.demo or speculation.draft) and engine.num_speculative_tokens > 0
    return GenerateOptions(
        model=flags.model,
        speculation=speculation,
        engine=engine,
        max_model_len=flags.max_model_len,
        memory=read_memory_share(flags),
        load=read_load_options(flags, has_draft=proposes),
        parallel=read_parallel_options(flags, speculation.draft_tensor_parallel_size),
        prompts=tuple(prompts),
        sampling=read_sampling_flags(flags),
        bad_words=tuple(flags.bad_words),
        form=_read_form(flags),
        raw=flags.raw,
        echo=flags.echo,
        json=flags.json,
    )


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
    add("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    add("--prompts-file", action="append", default=[], metavar="FILE", help="one a line, or JSONL")
    add("--json-schema", metavar="JSON", help="of the answer; @FILE reads a file, as below")
    add("--regex", metavar="TEXT", help="that the whole answer matches")
    add("--choice", action="append", metavar="TEXT", help="an answer; may be repeated")
    add("--grammar", metavar="TEXT", help="of the answer, as Lark or GBNF")
    add("--echo", action="store_true", help="put the prompt in front of the text")
    add("--raw", action="store_true", help="send prompts as they are, without the chat template")
    add("--json", action="store_true", help="one JSON object a line")
    add_sampling_flags(parser)
    add_engine_flags(parser, keys=True)
    add_memory_flags(parser)
    add_load_flags(parser)
    add_parallel_flags(parser)
    return parser
