"""Try a grammar in a sandbox (`serve.sandbox`).

llguidance may take minutes, fill the memory or overflow the stack, and cannot be interrupted.
"""

import ctypes
import json
import random
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from eagle3_jax.engine.grammars.faults import ErrorOf, Fault, find_fault

STACK_BYTES = 4 * 2**20
"""Half the stack of a server's thread, so that a grammar that fits here fits there."""
WALK = 16
"""Tokens of a random answer to try; the second half shows how memory grows."""


class _Vocabulary:
    """A vocabulary in llguidance's form."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], special_ids: list[int], eos_token_id: int) -> None:
        self.tokens, self.special_token_ids, self.eos_token_id = tokens, special_ids, eos_token_id
        self._of_byte = {token[0]: i for i, token in enumerate(tokens) if len(token) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._of_byte[byte] for byte in text[:1024] if byte in self._of_byte]


def read_tokenizer(vocabulary: bytes) -> LLTokenizer:
    """Read a vocabulary: a line of JSON that describes it, then the tokens' bytes."""
    line, _, blob = vocabulary.partition(b"\n")
    head = json.loads(line)
    ends = [0]
    for length in head["lengths"]:
        ends.append(ends[-1] + length)
    tokens = [blob[start:end] for start, end in pairwise(ends)]
    source = _Vocabulary(tokens, head["special_ids"], head["eos_ids"][0])
    return LLTokenizer(TokenizerWrapper(source), eos_token=head["eos_ids"])


def try_grammar(tokenizer: LLTokenizer, grammar: str, limits: dict[str, Any]) -> dict[str, Any]:
    """Compile a grammar and walk an answer: bytes held, and gained per mask, or `error`."""
    before = used_bytes()
    start = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**limits))
    start.compute_bitmask()
    if start.is_error():
        return {"error": start.get_error()}
    sizes, matcher, draw = list[int](), start.deep_copy(), random.Random(0)
    for _ in range(WALK):
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = mask & ~sum(1 << token for token in tokenizer.eos_tokens)
        sizes.append(used_bytes())
        if allowed:
            matcher.consume_token(_any_bit(allowed, draw))
        elif not matcher.is_error() or matcher.get_error().startswith("NoExtension"):
            matcher = start.deep_copy()  # The answer has ended or cannot continue.
        else:
            return {"error": matcher.get_error()}
    gained = (sizes[-1] - sizes[WALK // 2]) // (WALK - 1 - WALK // 2)
    return {"held_bytes": sizes[-1] - before, "mask_bytes": max(gained, 0)}


def _any_bit(bits: int, draw: random.Random) -> int:
    """Return the index of a random set bit."""
    start = draw.randrange(bits.bit_length())
    later = (bits >> start << start) or bits
    return (later & -later).bit_length() - 1


class _Allocated(ctypes.Structure):
    """glibc's `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def used_bytes() -> int:
    """Return the bytes allocated by this process, or its peak memory without glibc's counter."""
    count = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if count is None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    count.restype = _Allocated
    found = count()
    return found.uordblks + found.hblkhd


def try_parts(
    tokenizer: LLTokenizer, parts: list[Any], limits: dict[str, Any], seconds: float
) -> Any:
    """Return the Fault of a part that fails alone, or None; no check starts after `seconds`."""

    def timed(check: ErrorOf) -> ErrorOf:
        def checked(grammar: str) -> str | None:
            if time.process_time() > seconds:
                raise TimeoutError
            return check(grammar)

        return checked

    checks = [
        lambda grammar: LLMatcher.validate_grammar(
            grammar, tokenizer, limits=LLParserLimits(**limits)
        ),
        lambda grammar: try_grammar(tokenizer, grammar, limits).get("error"),
    ]
    known = deque[Fault](maxlen=1)
    with suppress(TimeoutError):
        known.extend(find_fault(parts, [timed(check) for check in checks]))
    return known[0] if known and known[0].reason else None


def prepare(vocabulary: bytes) -> Callable[[bytes], bytes]:
    """Read the vocabulary; return the function that calls `try_grammar` or `try_parts` by JSON."""
    tokenizer = read_tokenizer(vocabulary)
    threading.stack_size(STACK_BYTES)

    def answer(question: bytes) -> bytes:
        asked, found = json.loads(question), list[bytes]()

        def work() -> None:
            # The matcher is freed before the answer is sent, because freeing can overflow the stack
            # too.
            answered = (try_parts if "parts" in asked else try_grammar)(tokenizer, **asked)
            found.append(json.dumps(answered).encode())

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if not found:
            raise MemoryError
        return found[0]

    return answer
