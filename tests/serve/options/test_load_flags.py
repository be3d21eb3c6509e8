"""One group of flags says how checkpoints are loaded, and every command has it."""

import inspect
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from oracle_files import ORACLES

from convert import load_draft, load_target, load_tokenizer
from convert.conversion.cli import main as convert_main
from eagle3_tools.bench.cli import parse_bench_flags
from eagle3_tools.bench.common.command import given_pair
from serve.generate.cli import main as generate_main
from serve.generate.flags import parse_generate_flags
from serve.launch import run as serve_run
from serve.options.checkpoint import DEFAULTS, LoadOptions
from serve.options.serve_flags import parse_serve_flags
from serve.pair import loading

EVERY_FLAG = ["--quantize-activations", "int8", "--int4-order", "awq", "--aux-id-convention"]
EVERY_FLAG += ["after", "--draft-lm-head", "own", "--draft-rope-theta", "5e4"]
EVERY_FLAG += ["--draft-yarn-factor", "8"]
EVERY_OPTION = LoadOptions("int8", "awq", "after", "own", 5e4, 8.0)
INT4 = ORACLES / "draft_mha_int4_pc"
TOO_LONG = ["--max-model-len", "300000"]
"""Ends a command after it has read the weights, before it compiles anything."""


def serve(*argv: str) -> LoadOptions:
    return parse_serve_flags(argv)[0].load


def generate(*argv: str) -> LoadOptions:
    return parse_generate_flags([*argv, "--prompt", "a"]).load


def accept(*argv: str) -> LoadOptions:
    return parse_bench_flags(["accept", *argv]).load


def equal(*argv: str) -> LoadOptions:
    return parse_bench_flags(["equal", *argv]).load


@pytest.mark.parametrize("parse", [serve, generate, accept, equal])
def test_every_command_has_the_flags(parse: Callable[..., LoadOptions]) -> None:
    assert parse("--demo", *EVERY_FLAG) == EVERY_OPTION
    assert parse("--demo") == DEFAULTS
    assert parse("--demo", "--quantize-activations", "none").quantize_activations is False


def test_defaults_are_the_librarys() -> None:
    target, draft = (inspect.signature(load).parameters for load in (load_target, load_draft))
    for name, value in asdict(DEFAULTS).items():
        assert draft[name].default == value
    assert target["quantize_activations"].default == DEFAULTS.quantize_activations


@pytest.mark.parametrize("flag", [EVERY_FLAG[i : i + 2] for i in range(2, len(EVERY_FLAG), 2)])
def test_a_drafts_flag_without_a_draft_is_refused(
    flag: list[str], mistake: Callable[..., str]
) -> None:
    no_drafts = ["--demo", "--speculative-config", '{"num_speculative_tokens": 0}']
    for parse, argv in ((serve, ["m"]), (serve, no_drafts), (generate, ["m"])):
        assert f"{flag[0]} needs a draft" in mistake(parse, *argv, *flag)
        assert parse(*argv, *EVERY_FLAG[:2]).quantize_activations == "int8"


def test_the_draft_is_loaded_as_the_flags_say(target_directory: Path) -> None:
    options = replace(DEFAULTS, quantize_activations=False, lm_head="target", rope_theta=123.0)
    pair = loading.load_pair(target_directory, INT4, options)
    assert pair.draft is not None
    assert pair.draft.lm_head is pair.target.lm_head
    assert pair.draft.config.rope.theta == 123.0
    kernel = pair.draft.midlayer.mlp.up_proj.kernel.get_value()
    assert kernel.format.activations == "none"


def test_the_assumed_order_of_int4_is_on_standard_error(
    target_directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As some libraries do when they are imported.
    monkeypatch.setattr(logging.root, "handlers", [logging.StreamHandler(sys.stderr)])
    said = f"{INT4}: assuming INT4 per channel of Quark (linear order)"
    argv = [str(target_directory), *TOO_LONG]
    assert generate_main([*argv, "--draft", str(INT4), "--prompt", "a"]) == 2
    captured = capsys.readouterr()
    assert captured.err.count(said) == 1 and said not in captured.out
    config = json.dumps({"model": str(INT4)})
    served = [*argv, "--port", "0", "--speculative-config", config]
    assert serve_run(*parse_serve_flags(served)) == 2
    assert capsys.readouterr().err.count(said) == 1
    assert serve_run(*parse_serve_flags([*served, "--int4-order", "linear"])) == 2
    assert "assuming" not in capsys.readouterr().err


@pytest.fixture(scope="module")
def converted(target_directory: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a draft as eagle3-convert writes them."""
    into = tmp_path_factory.mktemp("converted")
    for source, name in ((target_directory, "target"), (ORACLES / "draft_mha_bf16", "draft")):
        assert convert_main([str(source), str(into / name)]) == 0
    return str(into / "target"), str(into / "draft")


def test_every_command_takes_a_converted_pair(
    converted: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    target, draft = converted
    config = json.dumps({"model": draft})
    served = [target, *TOO_LONG, "--port", "0", "--speculative-config", config]
    assert serve_run(*parse_serve_flags(served)) == 2
    assert "at most the model's 262144 tokens" in capsys.readouterr().err
    assert generate_main([target, *TOO_LONG, "--draft", draft, "--prompt", "a"]) == 2
    assert "at most the model's 262144 tokens" in capsys.readouterr().err
    for command in ("accept", "equal"):
        pair = given_pair(parse_bench_flags([command, target, "--draft", draft]))
        assert pair.draft is not None and pair.tokenizer.vocab_size > 0


def test_a_study_takes_the_tokenizer_that_is_named() -> None:
    target, draft = str(ORACLES / "kimi_bf16"), str(ORACLES / "draft_mha_bf16")
    argv = ["equal", target, "--draft", draft]
    with pytest.raises(FileNotFoundError, match="holds neither tokenizer"):
        given_pair(parse_bench_flags(argv))
    pair = given_pair(parse_bench_flags([*argv, "--tokenizer", str(ORACLES / "tokenizer")]))
    message = [{"role": "user", "content": "hello"}]
    expected = load_tokenizer(ORACLES / "tokenizer").encode_chat(message)
    assert pair.tokenizer.encode_chat(message) == expected


def test_an_order_for_a_converted_int4_draft_came_too_late(
    target_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert_main([str(INT4), str(tmp_path / "draft")]) == 0
    argv = [str(target_directory), "--draft", str(tmp_path / "draft"), "--prompt", "a"]
    capsys.readouterr()
    assert generate_main([*argv, "--int4-order", "awq"]) == 2
    error = capsys.readouterr().err
    assert "eagle3-generate: error: int4_order was decided when" in error
