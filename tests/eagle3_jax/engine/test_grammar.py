"""Answers with a grammar, triggered grammars or a thinking budget have their form.

tests/worlds holds that they are the same with and without speculation.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import pytest
from driving import Answer, drive, sizes
from grammar_traffic import END, FIRST, FORMS, LAST, OTHER_END, TRIGGERED
from spelling_tokenizer import EOS, PIECES, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs, ThinkingBudget
from eagle3_jax.sampling.token_mask import open_masks

pytest.importorskip("llguidance")
K = 3
BEGIN = PIECES.index("(")
ENDS = (END, OTHER_END, FIRST)


def valid_schema(text: str) -> bool:
    value = json.loads(text)
    assert set(value) == {"name", "ok", "sizes"} and isinstance(value["ok"], bool)
    return len(value["name"]) <= 6 and all(size <= 99 for size in value["sizes"])


CHECKS: dict[str, Callable[[str], Any]] = {
    "schema": valid_schema,
    "regex": re.compile(r"[a-c]{3,9}(-[0-9]{2}){1,3}").fullmatch,
    "choice": ["the end", "the inner", "abba"].__contains__,
    "grammar": re.compile(r"\[[a-e(),]+\]").fullmatch,
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0, "ignore_eos": True},
    {"temperature": 0.8, "top_p": 0.9, "repetition_penalty": 1.2},
    {"num_speculative_tokens": 1, "frequency_penalty": 0.3, "logit_bias": {3: 2.0}},
]
TRIGGERED_OPTIONS: list[dict[str, Any]] = [
    {},
    {"logit_bias": {FIRST: 2.0, LAST: 1.0}},
    {"temperature": 0.9, "num_speculative_tokens": 1},
    {"repetition_penalty": 0.9, "min_tokens": 2},
]
BUDGETS = [*range(2 * (K + 1)), 20, 29, 30, 99]
"""They end at every row of a round."""
BUDGET_OPTIONS: list[dict[str, Any]] = [
    {},
    {"structured_outputs": StructuredOutputs(regex="[ab]{3,9}", begins_after=END)},
    {"logit_bias": {OTHER_END: 2.0}},
    {"structured_outputs": TRIGGERED, "logit_bias": {FIRST: 1.0}},
]


def request_of(name: str, index: int, options: dict[str, Any]) -> Request:
    prompt = [(11 * index + 5 * j * j) % VOCAB for j in range(3 + (4 * index) % 15)]
    return Request(name, prompt, SamplingParams(seed=index, **options))


def with_form(index: int, form: str | None) -> Request:
    options = {"max_tokens": 45, "structured_outputs": FORMS[form] if form else None}
    return request_of(f"{form} {index}", index, options | OPTIONS[index % len(OPTIONS)])


def triggered(index: int, form: StructuredOutputs | None = TRIGGERED) -> Request:
    """Without an end two of three are long enough to have triggered text."""
    options = {"max_tokens": 45, "structured_outputs": form, "ignore_eos": index % 3 > 0}
    of_index = TRIGGERED_OPTIONS[index % len(TRIGGERED_OPTIONS)]
    return request_of(f"triggered {index}", index, options | of_index)


def with_budget(index: int, budget: int | None, **options: Any) -> Request:
    thinking = None if budget is None else ThinkingBudget(budget, ENDS)
    of_index = BUDGET_OPTIONS[index % len(BUDGET_OPTIONS)]
    shared = {"max_tokens": 30, "thinking_budget": thinking, "ignore_eos": True}
    return request_of(f"budget {budget}", index, of_index | shared | options)


CONSTRAINED = [with_form(i, [*FORMS, None][i % 5]) for i in range(4 * 5)]
"""Every form with every options; every fifth request is free."""


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def engine(target: Target, draft: Eagle3Draft) -> Engine:
    return ready(target, draft, sizes(K))


@pytest.fixture(scope="module")
def answers(engine: Engine) -> dict[str, Answer]:
    triggering = [triggered(index) for index in range(12)]
    thinking = [with_budget(index, budget) for index, budget in enumerate(BUDGETS)]
    return drive(engine, [*CONSTRAINED, *triggering, *thinking])


def tokens(engine: Engine, request: Request) -> list[int]:
    return drive(engine, [request])[request.request_id].token_ids


def test_every_finished_answer_has_its_form(answers: dict[str, Answer]) -> None:
    alike = {request.request_id for request in CONSTRAINED}
    finished = {n: a for n, a in answers.items() if n in alike and a.finish == ("stop", None)}
    assert {name.split()[0] for name in finished} >= set(FORMS)
    for name, answer in finished.items():
        check = CHECKS.get(name.split()[0], bool)
        assert answer.token_ids[-1] == EOS and check(answer.text), (name, answer.text)
    assert {answers[name].finish[0] for name in alike} <= {"stop", "length"}


def test_triggered_text_has_its_form_and_several_may_come(answers: dict[str, Answer]) -> None:
    """From each mark to the end behind it, or to the answer's where it was cut."""
    found = []
    for index in range(12):
        ids = answers[f"triggered {index}"].token_ids
        text = "".join(PIECES[i] if i < len(PIECES) else f"<{i}>" for i in ids)
        found.append(re.findall(r"![^?]*(?:\?|$)", text))
    whole = [piece for several in found for piece in several if piece.endswith("?")]
    assert len(whole) > 4 and max(map(len, found)) > 1
    assert all(re.fullmatch(r"!(?:[ab]{2,4}-)+\?", piece) for piece in whole)


def test_text_before_the_first_mark_is_what_it_is_without_a_form(
    engine: Engine, answers: dict[str, Answer]
) -> None:
    differing = 0
    for index in range(12):
        ours, theirs = (
            answers[f"triggered {index}"].token_ids,
            tokens(engine, triggered(index, None)),
        )
        end = ours.index(FIRST) + 1 if FIRST in ours else max(len(ours), len(theirs))
        assert ours[:end] == theirs[:end], index
        differing += ours != theirs
    assert differing > 4, "the form changed nothing behind the marks either"


def test_thinking_ends_at_the_budget_and_before_it_is_what_it_is_without(
    engine: Engine, answers: dict[str, Answer]
) -> None:
    forced = 0
    for index, budget in enumerate(BUDGETS):
        ids = answers[f"budget {budget}"].token_ids
        place = next((i for i, token in enumerate(ids) if token in ENDS), len(ids))
        assert place <= budget
        if place == budget and budget < len(ids):
            assert ids[place] == END
            forced += 1
        assert ids[:place] == tokens(engine, with_budget(index, None))[:place], budget
    assert forced > 6


def test_thinking_may_begin_with_the_answers_first_token(engine: Engine) -> None:
    """Its mark is none of the budget's tokens; without it nobody thinks and nothing is forced."""
    budget = ThinkingBudget(4, (END,), begins=BEGIN)
    free = with_budget(0, None, logit_bias={BEGIN: -100.0}).sampling
    asked = {
        "begun": replace(free, thinking_budget=budget, logit_bias={BEGIN: 100.0}),
        "never": replace(free, thinking_budget=budget),
        "plain": free,
    }
    found = {name: tokens(engine, Request(name, [5, 6, 7], s)) for name, s in asked.items()}
    assert found["begun"][:6] == [BEGIN] * 5 + [END]
    assert found["never"] == found["plain"]


@dataclass
class Traffic:
    """Programs, and transfers between host and device, in their order."""

    events: list[str] = field(default_factory=list)

    def watch(self, monkeypatch: pytest.MonkeyPatch, engine: Engine) -> None:
        run, runner = engine._runner._run, engine._runner

        def logged_run(program: Any, *inputs: object) -> tuple[Any, ...]:
            self.events.append(f"{program}")
            return run(program, *inputs)

        monkeypatch.setattr(runner, "_run", logged_run)
        for name in ("device_put", "device_get"):
            monkeypatch.setattr(jax, name, self._logged(name, getattr(jax, name)))

    def _logged(self, name: str, move: Callable[..., Any]) -> Callable[..., Any]:
        def logged(tree: Any, *places: Any) -> Any:
            self.events.append(f"{name} {sum(x.nbytes for x in jax.tree.leaves(tree))}")
            return move(tree, *places)

        return logged


def traffic_of(engine: Engine, requests: list[Request]) -> list[str]:
    """Prompts are new to the cache: they begin with another salt each time."""
    salted = [replace(r, cache_salt=f"{next(SALTS)}") for r in requests]
    traffic = Traffic()
    with pytest.MonkeyPatch.context() as patch:
        traffic.watch(patch, engine)
        drive(engine, salted)
    return traffic.events


SALTS = iter(range(10**6))


def test_batches_without_a_grammar_pay_nothing(
    target: Target, draft: Eagle3Draft, engine: Engine
) -> None:
    """The same programs and transfers, to the byte, in an engine that has grammars; also again
    when a grammar has been there and gone."""
    free = [with_form(index, None) for index in range(6)]
    without = Engine(target, draft, sizes(K), eos_token_ids=(EOS,))
    assert without.grammars is None and engine.grammars is not None
    with pytest.raises(ValueError, match=r"eagle3-jax\[grammar\]"):
        without.add(with_form(0, "schema"))
    assert not without.has_work
    expected = traffic_of(without, free)
    assert traffic_of(engine, free) == expected
    assert sum(event.startswith("full round") for event in expected) > 10
    with_grammar = traffic_of(engine, [with_form(9, "schema")])
    assert "propose of 4" in with_grammar and "verify of 4" in with_grammar
    assert traffic_of(engine, free) == expected


def test_a_constrained_round_uploads_its_masks_and_reads_its_drafts_once(engine: Engine) -> None:
    events = traffic_of(engine, [with_form(0, "schema")])
    rounds = events.count("verify of 4")
    assert rounds == events.count("propose of 4") > 3
    row = 4 * open_masks(VOCAB).size * 4
    assert events.count(f"device_put {row}") == rounds
    assert events.count(f"device_put {4 * row + 4 * K * 4}") == rounds
    assert events.count(f"device_get {4 * K * 4}") == rounds


def test_free_text_runs_in_the_rounds_of_requests_without_a_form(engine: Engine) -> None:
    """Without a mark the programs are the same; after one, rounds of two programs follow."""

    def run(form: StructuredOutputs | None, bias: float, **changes: Any) -> list[str]:
        changes |= {"logit_bias": {FIRST: bias}, "min_tokens": 0}
        of = [triggered(index, form) for index in range(4)]
        requests = [replace(r, sampling=replace(r.sampling, **changes)) for r in of]
        return [e for e in traffic_of(engine, requests) if not e.startswith("device")]

    never = run(TRIGGERED, -100.0)
    assert never == run(None, -100.0) and "propose of 4" not in never
    assert "propose of 4" not in run(TRIGGERED, 100.0, max_tokens=1)
    assert "propose of 4" in run(TRIGGERED, 100.0, max_tokens=2)


def test_a_dead_end_fails_its_own_request(engine: Engine, answers: dict[str, Answer]) -> None:
    stuck = StructuredOutputs(grammar='start: "a" more\nmore: more "b"')
    sampling = SamplingParams(max_tokens=9, structured_outputs=stuck)
    requests = [CONSTRAINED[0], Request("stuck", [1, 2], sampling), CONSTRAINED[4]]
    found = drive(engine, requests)
    failed = found.pop("stuck")
    assert failed.finish == ("error", "the request's options bar every token")
    assert failed.text == "a"
    for name, answer in found.items():
        assert (answer.token_ids, answer.finish) == (answers[name].token_ids, answers[name].finish)


def test_a_budget_is_no_negative_number_and_has_an_end() -> None:
    for count, ends in ((-1, (EOS,)), (3, ())):
        with pytest.raises(ValueError, match="thinking budget"):
            ThinkingBudget(count, ends)
