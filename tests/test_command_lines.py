"""Commands explain themselves, are completed, and refuse wrong flags in one line."""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from taken_names import folder_with_taken_names

from convert.command_line.parser import SHELLS, OneLineParser
from convert.command_line.reading import add_config_flag, read_command
from eagle3_tools.reference import ROOT
from eagle3_tools.reference.parsers import check_flags, entry_points, parser_of
from serve.generate.flags import parse_generate_flags
from serve.options.serve_flags import parse_serve_flags

COMMANDS = {name: at for name, at in entry_points(ROOT).items() if name.startswith("eagle3-")}
NO_DEFAULTS = (None, False, True, argparse.SUPPRESS, "", [], ())


@pytest.fixture(scope="module")
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands and subcommands."""
    return dict(found for name, at in COMMANDS.items() for found in below(name, parser_of(at)))


def below(
    name: str, parser: argparse.ArgumentParser
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    yield name, parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, one in action.choices.items():
                yield from below(f"{name} {sub}", one)


def test_every_flag_is_explained_and_its_default_stated(
    parsers: dict[str, argparse.ArgumentParser],
) -> None:
    assert len(parsers) > 15
    for name, parser in parsers.items():
        shown = " ".join(parser.format_help().split())
        for action in parser._actions:
            flag = "/".join(action.option_strings)
            if not flag or action.help == argparse.SUPPRESS:
                continue
            assert action.help, f"{name} {flag} says nothing"
            if action.default not in NO_DEFAULTS and "default" not in action.help:
                several = isinstance(action.default, list | tuple)
                value = " ".join(map(str, action.default)) if several else action.default
                assert f"default {value}" in shown, f"{name} {flag} hides {value}"


def test_every_help_ends_with_an_example_that_the_command_takes(
    parsers: dict[str, argparse.ArgumentParser],
) -> None:
    for name, parser in parsers.items():
        assert isinstance(parser, OneLineParser)
        assert parser.format_help().endswith(f"example:\n  {parser.example}\n")
        command, *argv = shlex.split(parser.example)
        assert parser.example.startswith(name), f"{name} shows {parser.example}"
        check_flags(COMMANDS[command], argv)


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("eagle3-serve --demo --prot 8001", "--port"),
        ("eagle3-serve --demo --max_modle_len 9", "--max-model-len"),
        ("eagle3-generate --demo --promt hi", "--prompt"),
        ("eagle3-convert SRC DST --dryrun", "--dry-run"),
        ("eagle3-quantize SRC DST --shceme int4", "--scheme"),
        ("eagle3-train draft --target T --output O --step 3", "--steps"),
        ("eagle3-bench accept --demmo", "--demo"),
        ("eagle3-plan --model M --concurency 8", "--concurrency"),
        ("eagle3-serve --demo --zzzzzz", None),
    ],
)
def test_a_misspelt_flag_is_answered_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], line: str, meant: str | None
) -> None:
    """One that resembles none is refused without a guess."""
    name, *argv = line.split()
    with pytest.raises(SystemExit, match="2"):
        check_flags(COMMANDS[name], argv)
    error = capsys.readouterr().err
    assert error.partition("did you mean ")[2] == (f"{meant}?\n" if meant else "")
    assert error.count("\n") == 1


def test_commands_import_nothing_from_the_current_folder(tmp_path: Path) -> None:
    scripts = [[Path(sys.executable).with_name(name)] for name in COMMANDS]
    module = [sys.executable, "-P", "-m", "serve.cli"]
    place, pipe = folder_with_taken_names(tmp_path), subprocess.PIPE
    started = {
        subprocess.Popen([*command, "--help"], cwd=place, text=True, stdout=pipe, stderr=pipe)
        for command in [*scripts, module]
    }
    for process in started:
        said, error = process.communicate()
        assert said.startswith("usage: eagle3-"), error


@pytest.fixture(scope="module")
def scripts(parsers: dict[str, argparse.ArgumentParser]) -> dict[str, str]:
    """Return the completion scripts for bash."""
    printed: dict[str, str] = {}
    with pytest.MonkeyPatch.context() as patch:
        for name in COMMANDS:
            patch.setattr("builtins.print", lambda text, name=name: printed.update({name: text}))
            with pytest.raises(SystemExit, match="0"):
                parsers[name].parse_args(["--print-completion", "bash"])
    return printed


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("eagle3-serve --max-model", {"--max-model-len"}),
        ("eagle3-serve --kernels p", {"pallas"}),
        ("eagle3-generate --json-sch", {"--json-schema"}),
        ("eagle3-convert --ver", {"--verify", "--version"}),
        ("eagle3-quantize --scheme mx", {"mxfp4"}),
        ("eagle3-train dr", {"draft"}),
        ("eagle3-bench sweep --range", {"--range-ratio"}),
        ("eagle3-plan --gpu MI35", {"MI355X"}),
    ],
)
def test_bash_completes_every_command(
    scripts: dict[str, str], words: str, completed: set[str]
) -> None:
    bash = shutil.which("bash")
    assert bash is not None
    line = words.split()
    ask = [
        f"COMP_WORDS=({words})",
        f"COMP_CWORD={len(line) - 1}",
        f"$(complete -p {line[0]} | sed 's/.*-F //; s/ .*//') {line[0]} {line[-1]} {line[-2]}",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    script = "\n".join([scripts[line[0]], *ask])
    found = subprocess.run([bash], input=script, capture_output=True, text=True, check=True)
    assert {word.strip() for word in found.stdout.split()} == completed


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_each_shell(
    parsers: dict[str, argparse.ArgumentParser], capsys: pytest.CaptureFixture[str], shell: str
) -> None:
    with pytest.raises(SystemExit, match="0"):
        parsers["eagle3-convert"].parse_args(["--print-completion", shell])
    assert "allow-nonfinite" in capsys.readouterr().out


NOT_FINITE = ("nan", "inf", "-inf", "1e400")
DEEP = "[" * 20_000, '{"a":' * 20_000, '{"a":' * 300 + "1" + "}" * 300
TEXTS = ("nan", "1e400", DEEP[0], DEEP[2], "-1", "1e300", "9" * 5000, "[]", '{"a": NaN}', "null")
READERS: dict[str, tuple[Callable[[list[str]], Any], list[str]]] = {
    "eagle3-serve": (parse_serve_flags, ["--demo"]),
    "eagle3-generate": (parse_generate_flags, ["--demo", "--prompt", "a"]),
}
"""Commands whose flags are read without anything being run."""


def valued(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Flags that take a value."""
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
