"""Bodies for /v1/messages that make a server work (hostile_bodies.py posts them)."""

from collections.abc import Callable, Mapping

from long_bodies import LIMIT, MESSAGE, full, keys

ONE_TOKEN = '"max_tokens":1'
TEXT = '{"type":"text","text":"a"}'
RESULT = '{"type":"tool_result","tool_use_id":"a","content":"a"}'
CALL = '{"type":"tool_use","id":"a","name":"b","input":%s}'
SIGNED = '{"type":"thinking","thinking":"","signature":"%s"}'


def said(block: str, size: int = LIMIT) -> bytes:
    """A message of as many such blocks as fit."""
    return full('{"messages":[{"role":"user","content":[', block, f"]}}],{ONE_TOKEN}}}", size)


def answered(block: str, size: int | None = None) -> bytes:
    """An answer of such blocks, one where no size is given, and a message behind it."""
    head, tail = '{"messages":[{"role":"assistant","content":[', f"]}},{MESSAGE}],{ONE_TOKEN}}}"
    return full(head, block, tail, size or len(head) + len(block) + len(tail) + 1)


def beside(field: str, item: str, size: int) -> bytes:
    """A message beside a list of such items in another field."""
    return full(f'{{{ONE_TOKEN},"messages":[{MESSAGE}],"{field}":[', item, "]}", size)


BODIES: Mapping[str, Callable[[], bytes]] = {
    "blocks": lambda: said(TEXT),
    "blocks, fewer": lambda: said(TEXT, 1_000_000),
    "a long block": lambda: said(TEXT.replace('"a"', '"' + "<|" * 2**22 + '"'), 2**23 + 200),
    "results": lambda: said(RESULT, 1_800_000),
    "results, fewer": lambda: said(RESULT, 900_000),
    "calls": lambda: answered(CALL % "{}", 1_000_000),
    "a long input": lambda: answered(CALL % f'{{"a":[{"[]," * 100_000}1]}}'),
    "a deep input": lambda: answered(CALL % f'{{"a":{"[" * 900}{"]" * 900}}}'),
    "a long signature": lambda: answered(SIGNED % ("text-" + "YWFh" * 2**21)),
    "keys": lambda: keys(
        '{"messages":[{"role":"user","content":"a",', lambda i: f"k{i}", 60_000, "}]}"
    ),
    "tools": lambda: beside("tools", '{"name":"f","input_schema":{}}', 2**21),
    "stop sequences": lambda: beside("stop_sequences", '"word"', 3_500_000),
}
"""What it is, and how it is made."""
