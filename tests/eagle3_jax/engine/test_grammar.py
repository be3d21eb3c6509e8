"""Answers with a grammar: in their form, and the same with and without speculation."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from driving import Answer, drive, sizes
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.sampling_params import SamplingParams
from eagle3_jax.structured_outputs import StructuredOutputs

pytest.importorskip("llguidance")
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


def valid_schema(text: str) -> bool:
    value = json.loads(text)
    assert set(value) == {"name", "ok", "sizes"} and isinstance(value["ok"], bool)
    return len(value["name"]) <= 6 and all(size <= 99 for size in value["sizes"])


LAWS: dict[str, Callable[[str], Any]] = {
    "schema": valid_schema,
    "regex": re.compile(r"[a-c]{3,9}(-[0-9]{2}){1,3}").fullmatch,
    "choice": ["the end", "the inner", "abba"].__contains__,
    "grammar": re.compile(r"\[[a-e(),]+\]").fullmatch,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2},
    {"num_speculative_tokens": 1, "frequency_penalty": 0.3, "logit_bias": {3: 2.0}},
]


def request_of(index: int, form: str | None) -> Request:
    prompt = [(11 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    options: dict[str, Any] = {"seed": index, "max_tokens": 45}
    options["structured_outputs"] = FORMS[form] if form else None
    sampling = SamplingParams(**options, **OPTIONS[index % len(OPTIONS)])
    return Request(f"{form} {index}", prompt, sampling)


@pytest.fixture(scope="module")
def constrained() -> list[Request]:
    """Every form with every options; every fifth request is free."""
    forms = [*FORMS, None]
    return [request_of(i, forms[i % 5]) for i in range(4 * len(forms))]


def ready(target: KimiTarget, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def alone(target: KimiTarget, constrained: list[Request]) -> dict[str, Answer]:
    """Plain decoding, one at a time, never preempted."""
    engine = ready(target, None, sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,)))
    answers: dict[str, Answer] = {}
    for request in constrained:
        sampling = replace(request.sampling, num_speculative_tokens=None)
        answers |= drive(engine, [replace(request, sampling=sampling)])
    return answers


def test_every_finished_answer_has_its_form(alone: dict[str, Answer]) -> None:
    finished = {n: a for n, a in alone.items() if a.finish == ("stop", None)}
    forms = {name.split()[0] for name in finished}
    assert forms >= set(FORMS)
    for name, answer in finished.items():
        law = LAWS.get(name.split()[0], bool)
        assert answer.token_ids[-1] == EOS and law(answer.text), (name, answer.text)
    assert {a.finish[0] for a in alone.values()} <= {"stop", "length"}


@pytest.mark.parametrize("arrival_gap", [0, 3])
@pytest.mark.parametrize("exact", [False, True], ids=["bucketed", "exact"])
def test_speculation_batches_and_preemption_change_no_token(
    target: KimiTarget,
    draft: Eagle3Draft,
    constrained: list[Request],
    alone: dict[str, Answer],
    exact: bool,
    arrival_gap: int,
) -> None:
    engine = ready(target, draft, sizes(3, exact=exact))
    for name, answer in drive(engine, constrained, arrival_gap=arrival_gap).items():
        assert answer.token_ids == alone[name].token_ids, name
        assert (answer.text, answer.finish) == (alone[name].text, alone[name].finish), name
    stats = engine.stats()
    assert stats.num_preemptions > 0 and stats.num_accepted_tokens > 20
    assert stats.free_pages == stats.total_pages
