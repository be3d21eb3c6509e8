"""A command accepts any value of a flag, or exits with status 2 and a one-line error."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_command_lines import COMMANDS, below

from convert.command_line.config_file import add_config_flag
from convert.command_line.parser import OneLineParser
from convert.command_line.spellings import read_command
from docs.generator.parsers import parser_of
from serve.generate.flags import parse_generate_flags
from serve.options.serve_flags import parse_serve_flags

NOT_FINITE = ("nan", "inf", "-inf", "1e400")
DEEP = "[" * 20_000, '{"a":' * 20_000, '{"a":' * 300 + "1" + "}" * 300
TEXTS = (*NOT_FINITE, *DEEP, "-1", "1e300", "9" * 5000, "[]", '{"a": NaN}', '{"a": 1e999}', "null")
READERS: dict[str, tuple[Callable[[list[str]], Any], list[str]]] = {
    "eagle3-serve": (parse_serve_flags, ["--demo"]),
    "eagle3-generate": (parse_generate_flags, ["--demo", "--prompt", "a"]),
}
"""Commands whose flags can be parsed without running anything."""


@pytest.fixture(scope="module")
def parsers() -> dict[str, argparse.ArgumentParser]:
    return dict(found for name, at in COMMANDS.items() for found in below(name, parser_of(at)))


def valued(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield flags that take a value."""
    for action in parser._actions:
        if action.option_strings and action.nargs != 0:
            yield action


def test_no_flag_of_any_command_is_a_number_that_is_not_finite(
    parsers: dict[str, argparse.ArgumentParser],
) -> None:
    count = 0
    for name, parser in parsers.items():
        for action in valued(parser):
            if action.type in (None, Path):
                continue
            for text in (*NOT_FINITE, *DEEP):
                with suppress(argparse.ArgumentError):
                    value = parser._get_value(action, text)  # type: ignore[attr-defined]
                    assert value not in (float("inf"), -float("inf")) and value == value, (
                        f"{name} {action.option_strings[0]} takes {text:.20}"
                    )
                count += 1
    assert count > 300


@pytest.mark.parametrize("command", READERS)
def test_every_flag_is_read_or_refused_in_one_line(
    parsers: dict[str, argparse.ArgumentParser], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    read, given = READERS[command]
    for action in valued(parsers[command]):
        flag = action.option_strings[0]
        for text in TEXTS:
            try:
                read([*given, f"{flag}={text}"])
            except SystemExit as end:
                error = capsys.readouterr().err
                assert end.code == 2, flag
                assert error.startswith(f"{command}: error: ") and error.count("\n") == 1, flag


@pytest.mark.parametrize(
    "text",
    [
        "port: " + "[" * 20_000,
        "seed: 2020-01-01",
        "seed: 2020-13-45",
        "seed: .inf",
        "seed: &a [*a]",
        "seed: !!binary aGk=",
        "drain_timeout: .nan",
        "? [a]\n: 1",
    ],
)
def test_a_file_of_flags_is_read_or_refused_in_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = OneLineParser(prog="it")
    add_config_flag(parser)
    for flag, kind in (("--port", int), ("--seed", float), ("--drain-timeout", float)):
        parser.add_argument(flag, type=kind)
    path = tmp_path / "flags.yaml"
    path.write_text(text)
    with pytest.raises(SystemExit, match="2"):
        read_command(parser, ["--config", str(path)], lambda flags: flags)
    error = capsys.readouterr().err
    assert error.startswith("it: error: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    "flags", [["--hosts-key-file", "key"], ["--plan-port", "9000"], ["--master-port", "9000"]]
)
def test_a_flag_of_several_hosts_is_not_ignored_on_one(
    flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_serve_flags(["--demo", *flags])
    assert f"{flags[0]} belongs to several hosts" in capsys.readouterr().err
