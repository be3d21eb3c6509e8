"""Grammars in llguidance's form, and the search for the part and the keyword that it refuses."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from llguidance import LLMatcher, grammar_from

from eagle3_jax.sampling.json_schema import DEFINITIONS, pointer, subschemas
from eagle3_jax.sampling.structured_outputs import WHITESPACE, StructuredOutputs


def grammar_text(constraint: StructuredOutputs) -> str:
    """Return the constraint's grammar; raise ValueError if `json` holds no schema."""
    if constraint.regex is not None:
        return LLMatcher.grammar_from_regex(constraint.regex)
    if constraint.choice is not None:
        return grammar_from("choice", json.dumps(constraint.choice))
    if constraint.grammar is not None:
        return grammar_from("grammar", constraint.grammar)
    schema = constraint.schema
    assert schema is not None, "a constraint is of some kind"
    return schema_grammar(schema)


def schema_grammar(schema: Mapping[str, Any]) -> str:
    text = json.dumps(schema)
    return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITESPACE})


MOST_SAID = 400
OURS = re.compile(
    r"(?s)\n(<|\s*\d+ \||\s*while processing).*|^at \d+\(\d+\): (failed to compile JSON schema: )?"
)
"""Text that llguidance adds to a reason: its state, grammar lines, and places in both."""
ErrorOf = Callable[[str], str | None]
"""Returns llguidance's error for a grammar, if it has one."""


class Fault(NamedTuple):
    """The reason why a form is refused.

    Attributes:
        part: Index of the part at fault.
        pointer: Place of the keyword at fault in the part's JSON schema, if found.
        reason: llguidance's error; empty while the part is only being tried.
    """

    part: int
    pointer: str | None
    reason: str


def plain(error: str) -> str:
    """Return llguidance's error in one line, without its own state and the server's grammar."""
    return " ".join(OURS.sub("", error).split())[:MOST_SAID]


def find_fault(parts: Sequence[tuple[str, Any]], checks: Sequence[ErrorOf]) -> Iterator[Fault]:
    """Yield the faults known of the first refused part; each item replaces the previous one.

    llguidance cannot be interrupted, but the caller's process may be killed. The last item then
    names the part that was being tried.

    Args:
        parts: Grammar of each part alone, and its JSON schema or None.
        checks: Run in order on all parts; the first, cheapest one also finds the keyword.
    """
    for check in checks:
        for index, (grammar, schema) in enumerate(parts):
            yield Fault(index, None, "")
            if not (error := check(grammar)):
                continue
            yield Fault(index, None, error)
            if schema is not None:
                yield from (Fault(index, *found) for found in _locate(schema, checks[0]))
            return


def _locate(schema: Mapping[str, Any], error_of: ErrorOf) -> Iterator[tuple[str, str]]:
    """Yield the pointer of the subschema that causes the schema's error, then the keyword's."""
    shared = {name: schema[name] for name in DEFINITIONS if name in schema}

    def error(inner: Mapping[str, Any]) -> str:
        return plain(error_of(schema_grammar({**inner, **shared})) or "")

    def refused(inner: Any) -> bool:
        return isinstance(inner, Mapping) and error(inner) == reason

    reason, place, found = error(schema), (), schema
    while reason:
        # Definitions first, because a reference to one has its error too.
        inner = sorted(subschemas(found), key=lambda one: one[0][0] not in DEFINITIONS)
        keys, deeper = next((one for one in inner if refused(one[1])), ((), None))
        if deeper is None:
            break
        place, found = (*place, *keys), deeper
        yield pointer(place), reason
    for name in found if reason else ():
        if not refused({key: value for key, value in found.items() if key != name}):
            yield pointer((*place, name)), reason
            return
