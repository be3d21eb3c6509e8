"""Generate docs/reference/cli.md: every command with its flags, from the parsers."""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from convert.command_line.parser import stated_default
from eagle3_tools.reference.parsers import entry_points, parser_of

HEAD = """# Commands

Made by `python -m docs.generator` from the commands' own parsers; a test compares them.
"""
PARAGRAPH = "\n\n"


def commands_page(root: Path) -> str:
    sections = [HEAD]
    for name, entry_point in entry_points(root).items():
        sections += _command(name, parser_of(entry_point), "##")
    return "\n".join(sections)


def _command(name: str, parser: argparse.ArgumentParser, level: str) -> Iterator[str]:
    yield f"{level} {name}\n"
    if parser.description:
        yield f"{_one_line(parser.description.partition(PARAGRAPH)[0])}\n"
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if _is_listed(a)]
        if shown:
            yield from _table(group.title or "", shown, parser)
    hidden = [option for a in parser._actions if _is_hidden(a) for option in a.option_strings]
    if hidden:
        names = ", ".join(f"`{option}`" for option in sorted(hidden))
        yield f"Read too, without an effect or refused with the reason: {names}.\n"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for sub, below in action.choices.items():
                yield from _command(f"{name} {sub}", below, level + "#")


def _is_hidden(action: argparse.Action) -> bool:
    return action.help == argparse.SUPPRESS


def _is_listed(action: argparse.Action) -> bool:
    others = (argparse._HelpAction, argparse._SubParsersAction)
    return not _is_hidden(action) and not isinstance(action, others)


def _table(
    title: str, actions: list[argparse.Action], parser: argparse.ArgumentParser
) -> list[str]:
    heading = {"positional arguments": "argument", "options": "flag"}.get(title, title)
    rows = [f"| {_names(a, parser)} | {_meaning(a, parser)} |" for a in actions]
    return [f"| {heading} | |\n| --- | --- |", *rows, ""]


def _names(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    value = "" if action.nargs == 0 else formatter._format_args(action, _placeholder(action))
    if not action.option_strings:
        return _code(value)
    return ", ".join(_code(f"{option} {value}".strip()) for option in action.option_strings)


def _placeholder(action: argparse.Action) -> str:
    if action.choices is not None:
        return "|".join(map(str, action.choices))
    name = action.metavar or action.dest.upper()
    return name if isinstance(name, str) else " ".join(name)


def _meaning(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    text = argparse.HelpFormatter(parser.prog)._expand_help(action) if action.help else ""
    default = stated_default(action)
    required = "required" if action.required and action.option_strings else ""
    return escape("; ".join(filter(None, (_one_line(text), required, default))))


def markdown_table(*rows: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a table, headings first."""
    headings, *others = map(list, rows)
    for row in (headings, ["---"] * len(headings), *others):
        yield f"| {' | '.join(row)} |"


def _code(text: str) -> str:
    return f"`{escape(text)}`"


def escape(text: str) -> str:
    return text.replace("|", "\\|")


def _one_line(text: str) -> str:
    return " ".join(text.split())
