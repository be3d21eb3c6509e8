"""Try grammars in a sandbox before the server compiles them."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from eagle3_jax.engine.grammars.faults import Fault
from eagle3_jax.engine.grammars.interface import (
    GRAMMAR_BYTES,
    Footprint,
    GrammarsBusyError,
    TooComplexError,
    Vocabulary,
)
from serve.sandbox.sandbox import BusyError, EndedError, Limits, Sandbox

CPU_SECONDS = 1.0
WALL_SECONDS = 20.0
"""Wall time that a CPU second may take when many processes compete."""
MEMORY_BYTES = 256 * 2**20
"""Limit while compiling; memory held afterwards has its own limit."""
BEHIND = 10
"""Niceness, lower priority than generation."""
MOST_ALONE = 4
"""Maximum number of a form's parts that are tried one by one."""
TOO_COMPLEX = (
    f"too complex: compiling it takes more than {CPU_SECONDS:g} s of a processor or "
    f"{MEMORY_BYTES >> 20} MiB; it needs fewer rules or properties, or smaller ranges and repeats"
)


class GrammarTrials:
    """A Trial that asks a new process about each grammar; thread-safe. `owner` ends them."""

    def __init__(self, vocabulary: Vocabulary, owner: ExitStack) -> None:
        head = {
            "lengths": [len(token) for token in vocabulary.tokens],
            "special_ids": list(vocabulary.special_ids),
            "eos_ids": list(vocabulary.eos_ids),
        }
        setup = f"{json.dumps(head)}\n".encode() + b"".join(vocabulary.tokens)
        self._sandbox = owner.enter_context(Sandbox("serve.engine.grammar_process", setup))

    def __call__(self, grammar: str, limits: Mapping[str, int]) -> Footprint:
        """See Trial. Raises GrammarsBusyError if the trial could not run."""
        answer = self._ask(limits, grammar=grammar)
        if (error := answer.get("error")) is not None:
            raise ValueError(error)
        footprint = Footprint(**answer)
        if footprint.held_bytes > GRAMMAR_BYTES:
            raise TooComplexError(
                f"too complex: compiled it holds {footprint.held_bytes >> 20} MiB, and may hold "
                f"{GRAMMAR_BYTES >> 20}; it needs fewer rules or properties, or smaller ranges"
            )
        return footprint

    def find_fault(
        self, parts: Sequence[tuple[str, Any]], limits: Mapping[str, int]
    ) -> Fault | None:
        """See Trial. If all parts take too much, only the largest are tried, one by one."""
        try:
            answer = self._ask(limits, parts=parts, seconds=CPU_SECONDS / 2)
            return None if answer is None else Fault(*answer)
        except TooComplexError:
            largest = sorted(range(len(parts)), key=lambda n: len(parts[n][0]), reverse=True)
        for index in largest[:MOST_ALONE]:
            try:
                self(parts[index][0], limits)
            except ValueError as error:
                return Fault(index, None, str(error))
        return None

    def _ask(self, limits: Mapping[str, int], **asked: Any) -> Any:
        question = json.dumps({**asked, "limits": dict(limits)}).encode()
        allowed = Limits(CPU_SECONDS, MEMORY_BYTES, WALL_SECONDS, BEHIND)
        try:
            return json.loads(self._sandbox.ask(question, allowed))
        except EndedError as error:
            raise TooComplexError(TOO_COMPLEX) from error
        except BusyError as error:
            raise GrammarsBusyError(f"the grammar was not compiled: {error}") from error
