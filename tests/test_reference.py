"""docs/reference is up to date, and parsers accept every command line in the docs."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_tools.reference import PAGES, ROOT
from eagle3_tools.reference.parsers import check_flags, entry_points
from serve.options.serve_flags import parse_serve_flags

COMMANDS = entry_points(ROOT)
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = re.compile(r"eagle3-[a-z]+\b|python -P -m (convert|eagle3_tools)")
ENDS = {"&&", "||", "|", "&", ";", ">", "2>"}


def code_lines(path: Path) -> Iterator[str]:
    """Yield lines of indented and fenced blocks, with continued lines joined."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    indented = re.findall(r"^    (.*)", text, re.MULTILINE)
    yield from (line.strip() for line in [*fenced.split("\n"), *indented])


def shell_lines(path: Path) -> Iterator[list[str]]:
    """Yield the words of each line with one of our commands; quotes may span several lines."""
    begun = ""
    for line in code_lines(path):
        begun = f"{begun} {line}" if begun else line
        if OURS.search(begun):
            try:
                yield shlex.split(begun, comments=True)
            except ValueError:
                continue
        begun = ""
    assert not begun, f"{path.name}: {begun} has no end"


def commands_in(line: list[str]) -> Iterator[list[str]]:
    """Yield our commands in a shell line, as name and flags."""
    words: list[str] = []
    for word in [*line, ";"]:
        if word not in ENDS:
            words.append(word)
            continue
        while words and re.match(r"[A-Z_]+=", words[0]):
            del words[0]
        if words[:3] == ["python", "-P", "-m"]:
            words[:4] = [" ".join(words[:4])]
        synopsis = any(word.startswith("[-") for word in words)
        if words and words[0] in COMMANDS and not synopsis:
            yield words
        words = []


SHOWN = [
    pytest.param(command, id=f"{path.name}-{shlex.join(command)[:60]}")
    for path in DOCS
    for line in shell_lines(path)
    for command in commands_in(line)
]


@pytest.mark.parametrize("name", PAGES)
def test_the_reference_is_up_to_date(name: str) -> None:
    held = (ROOT / name).read_text(encoding="utf-8")
    assert held == PAGES[name](ROOT), (
        f"{name} is not what the code says: run python -m docs.generator"
    )


def test_all_commands_are_in_the_reference_and_in_the_docs() -> None:
    page = (ROOT / "docs/reference/cli.md").read_text(encoding="utf-8")
    shown = {param.values[0][0] for param in SHOWN}  # type: ignore[index]
    for name in COMMANDS:
        assert f"\n## {name}\n" in page
    assert len(SHOWN) > 30 and {name for name in COMMANDS if name.startswith("eagle3-")} <= shown


@pytest.mark.parametrize("command", SHOWN)
def test_command_lines_in_the_docs_are_ones_that_the_parsers_take(command: list[str]) -> None:
    name, *argv = command
    if "--help" in argv:
        argv.remove("--help")
    try:
        if "--speculative-config" in argv:
            parse_serve_flags(argv)
        else:
            check_flags(COMMANDS[name], argv)
    except SystemExit as ended:
        assert ended.code == 0, f"{shlex.join(command)} is refused with status {ended.code}"


def test_links_between_pages_lead_somewhere() -> None:
    for path in DOCS:
        for target in re.findall(r"\]\(([^)#\s]+)[^)\s]*\)", path.read_text(encoding="utf-8")):
            if not re.match(r"https?:", target):
                assert (path.parent / target).exists(), f"{path.name} names {target}"
