"""Random requests, most with a grammar, triggered grammars or a thinking budget."""

from dataclasses import replace
from typing import Any

import numpy as np
from spelling_tokenizer import PIECES
from traffic import random_requests

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs, ThinkingBudget

FIRST, LAST, END, OTHER_END = (PIECES.index(piece) for piece in "!?),")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "ok": {"type": "boolean"},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "ok", "sizes"],
    "additionalProperties": False,
}
LIST = 'start: "[" item ("," item){0,3} "]"\nitem: /[a-e]+/ | "(" item ")"'
FORMS: dict[str, StructuredOutputs] = {
    "schema": StructuredOutputs(json=SCHEMA),
    "regex": StructuredOutputs(regex=r"[a-c]{3,9}(-[0-9]{2}){1,3}"),
    "choice": StructuredOutputs(choice=["the end", "the inner", "abba"]),
    "grammar": StructuredOutputs(grammar=LIST),
}
TRIGGERED = StructuredOutputs(
    grammar='start: "!" part+ "?"\npart: /[ab]{2,4}/ "-"', between=(FIRST, LAST)
)
KINDS: list[dict[str, Any]] = [
    *({"structured_outputs": form} for form in FORMS.values()),
    {"structured_outputs": TRIGGERED, "logit_bias": {FIRST: 2.0, LAST: 1.0}, "ignore_eos": True},
    {"structured_outputs": StructuredOutputs(regex="[ab]{3,9}", begins_after=END)},
    {},
]
"""The last but one also gets a random thinking budget."""


def grammar_requests(rng: np.random.Generator, count: int) -> list[Request]:
    """Return random requests of each kind in turn, without stops and conflicting options."""
    requests: list[Request] = []
    for i, request in enumerate(random_requests(rng, count)):
        kept: Any = {
            name: getattr(request.sampling, name)
            for name in ("temperature", "top_p", "seed", "num_speculative_tokens")
        }
        kind: Any = KINDS[i % len(KINDS)]
        if kind is KINDS[-2]:
            kind = kind | {
                "thinking_budget": ThinkingBudget(int(rng.integers(0, 9)), (END, OTHER_END))
            }
        penalty = float(rng.choice([1.0, 1.2]))
        sampling = SamplingParams(**kept, max_tokens=40, repetition_penalty=penalty, **kind)
        requests.append(replace(request, sampling=sampling))
    return requests
