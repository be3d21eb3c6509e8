"""Bodies of POST /v1/responses that make a server work."""

from collections.abc import Callable, Mapping

from long_bodies import MESSAGE, full, text

UNSEEN = f'"}},{{"role":"assistant","content":"b"}},{MESSAGE}]}}'
"""Behind reasoning that templates leave out."""
THOUGHT = '{"max_output_tokens":1,"input":[{"type":"reasoning","'
HIDDEN = '{"input":"a","max_output_tokens":1,"tool_choice":"none","tools":['
BODIES: Mapping[str, Callable[[], bytes]] = {
    "items": lambda: full('{"input":[', MESSAGE, "]}", 3_000_000),
    "items that fit": lambda: full('{"input":[', MESSAGE, "]}", 450_000),
    "items to truncate": lambda: full('{"truncation":"auto","input":[', MESSAGE, "]}", 450_000),
    "parts of an item": lambda: full(
        '{"input":[{"role":"user","content":[', '{"type":"input_text","text":"a"}', "]}]}", 2**21
    ),
    "references": lambda: full('{"input":[', '{"id":"rs_0_0"}', "]}", 240_000),
    "instructions": lambda: text('{"input":"a","instructions":"', "<|", '"}'),
    "reasoning that no prompt shows": lambda: text(f'{THOUGHT}content":"', "a", UNSEEN),
    "sealed reasoning": lambda: text(f'{THOUGHT}encrypted_content":"text:', "YWFh", UNSEEN),
    "a tool that no prompt shows": lambda: text(
        HIDDEN + '{"type":"function","name":"f","description":"', "a", '"}]}', 2**22
    ),
    "a large tool that no prompt shows": lambda: full(
        HIDDEN + '{"type":"function","name":"f","parameters":{"a":[', "[]", "]}}]}", 175_000
    ),
}
"""What it is, and how it is made."""
