"""Every command has complete help, suggests corrections of misspelt flags, and is completed."""

import argparse
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest

from convert.command_line.about import SHELLS
from convert.command_line.parser import OneLineParser
from docs.generator import ROOT
from docs.generator.parsers import check_flags, entry_points, parser_of

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
    assert len(parsers) > 20
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
    ],
)
def test_a_misspelt_flag_is_answered_with_the_one_that_was_meant(
    capsys: pytest.CaptureFixture[str], line: str, meant: str
) -> None:
    name, *argv = line.split()
    with pytest.raises(SystemExit, match="2"):
        check_flags(COMMANDS[name], argv)
    error = capsys.readouterr().err
    assert error.endswith(f"did you mean {meant}?\n") and error.count("\n") == 1


@pytest.mark.parametrize("module", ["serve.cli", "serve.generate.cli", "convert.conversion.cli"])
def test_a_command_that_is_run_as_a_module_is_the_command(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module, "--prot"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("eagle3-")


def test_a_flag_that_resembles_none_is_refused_without_a_guess(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        check_flags(COMMANDS["eagle3-serve"], ["--demo", "--zzzzzz"])
    assert "did you mean" not in capsys.readouterr().err


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
