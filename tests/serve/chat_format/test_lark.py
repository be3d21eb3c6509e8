"""Regular expressions within Lark grammars."""

import re

import pytest

from serve.chat_format.lark import regex_body


@pytest.mark.parametrize("pattern", ["a\\\nb", "a\nb", "a\\\\\nb", "a/b", "a\\/b", "[/]"])
def test_between_slashes_it_matches_what_it_matched(pattern: str) -> None:
    body = regex_body(pattern)
    assert "\n" not in body and not re.search(r"(?<!\\)(\\\\)*/", body)
    for text in ("a\nb", "a\\\nb", "a/b", "/", "ab"):
        assert bool(re.fullmatch(body, text)) == bool(re.fullmatch(pattern, text)), text
