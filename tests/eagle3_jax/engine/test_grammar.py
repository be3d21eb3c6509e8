"""Answers with a grammar: in their form, and the same with and without speculation."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import pytest
from driving import Answer, drive, sizes
from grammar_traffic import FORMS
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import VOCAB, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks

pytest.importorskip("llguidance")


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


def ready(target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
    return Engine(target, draft, config, tokenizer=SpellingTokenizer(), eos_token_ids=(EOS,))


@pytest.fixture(scope="module")
def alone(target: Target, constrained: list[Request]) -> dict[str, Answer]:
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
        check = CHECKS.get(name.split()[0], bool)
        assert answer.token_ids[-1] == EOS and check(answer.text), (name, answer.text)
    assert {a.finish[0] for a in alone.values()} <= {"stop", "length"}


def assert_same(answers: dict[str, Answer], alone: dict[str, Answer]) -> None:
    for name, answer in answers.items():
        assert answer.token_ids == alone[name].token_ids, name
        assert (answer.text, answer.finish) == (alone[name].text, alone[name].finish), name


def test_replicas_change_no_token(constrained: list[Request], alone: dict[str, Answer]) -> None:
    """Each replica has the masks of its own sequences."""
    target = tiny_target()
    draft = tiny_draft(target)
    mesh = make_mesh(1, enable_expert_parallel=True, data_parallel_size=2)
    shard(target, mesh)
    shard(draft, mesh)
    engine = ready(
        target, draft, sizes(3, data_parallel_size=2, max_num_seqs=2, batch_buckets=(2,))
    )
    assert_same(drive(engine, constrained, arrival_gap=1), alone)
    assert engine.stats().num_accepted_tokens > 20


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
    traffic = Traffic()
    with pytest.MonkeyPatch.context() as patch:
        traffic.watch(patch, engine)
        drive(engine, requests)
    return traffic.events


def test_batches_without_a_grammar_pay_nothing(target: Target, draft: Eagle3Draft) -> None:
    """The same programs and transfers, to the byte, in an engine that has grammars; also again
    when a grammar has been there and gone."""
    free = [request_of(index, None) for index in range(6)]
    without = Engine(target, draft, sizes(3), eos_token_ids=(EOS,))
    has_grammars = ready(target, draft, sizes(3))
    assert without.grammars is None and has_grammars.grammars is not None
    expected = traffic_of(without, free)
    assert traffic_of(has_grammars, free) == expected
    assert sum(event.startswith("full round") for event in expected) > 10
    with_grammar = traffic_of(has_grammars, [request_of(9, "schema")])
    assert "propose of 4" in with_grammar and "verify of 4" in with_grammar
    again = [replace(r, prompt_ids=[t ^ 1 for t in r.prompt_ids]) for r in free]
    assert traffic_of(has_grammars, again) == traffic_of(without, again)


def test_a_constrained_round_uploads_its_masks_and_reads_its_drafts_once(
    target: Target, draft: Eagle3Draft
) -> None:
    events = traffic_of(ready(target, draft, sizes(3)), [request_of(0, "schema")])
    rounds = events.count("verify of 4")
    assert rounds == events.count("propose of 4") > 3
    row = 4 * open_masks(VOCAB).size * 4
    assert events.count(f"device_put {row}") == rounds
    assert events.count(f"device_put {4 * row + 4 * 3 * 4}") == rounds
    assert events.count(f"device_get {4 * 3 * 4}") == rounds


def test_a_dead_end_fails_its_own_request(
    target: Target, draft: Eagle3Draft, constrained: list[Request], alone: dict[str, Answer]
) -> None:
    stuck = StructuredOutputs(grammar='start: "a" more\nmore: more "b"')
    sampling = SamplingParams(max_tokens=9, structured_outputs=stuck)
    requests = [constrained[0], Request("stuck", [1, 2], sampling), constrained[4]]
    answers = drive(ready(target, draft, sizes(3)), requests)
    failed = answers.pop("stuck")
    assert failed.finish == ("error", "the request's options bar every token")
    assert failed.text == "a"
    assert_same(answers, alone)


@pytest.mark.parametrize("max_num_seqs", [1, 2, 8])
def test_a_grammar_adds_at_most_four_programs(
    target: Target, draft: Eagle3Draft, max_num_seqs: int
) -> None:
    config = EngineConfig(max_num_seqs=max_num_seqs)
    plain = Engine(target, draft, config)._runner.executor.programs
    added = set(ready(target, draft, config)._runner.executor.programs) - set(plain)
    assert {str(program).split()[0] for program in added} == {"propose", "verify"}
    assert len(added) == 2 * min(max_num_seqs, 2)
    assert sum("argmax" not in program.kind for program in plain) <= 12


def test_without_grammars_a_form_is_refused(target: Target, draft: Eagle3Draft) -> None:
    engine = Engine(target, draft, sizes(3))
    with pytest.raises(ValueError, match=r"eagle3-jax\[grammar\]"):
        engine.add(request_of(0, "schema"))
    assert not engine.has_work


def test_rounds_without_drafts_between_constrained_ones_change_no_token(
    target: Target,
    draft: Eagle3Draft,
    constrained: list[Request],
    alone: dict[str, Answer],
) -> None:
    """A constrained round keeps its k whatever the table says, and the next one reads its rows."""
    config = sizes(3, num_speculative_tokens_per_batch_size=((1, 4, 0),))
    engine = ready(target, draft, config)
    for name, answer in drive(engine, constrained[2:10], arrival_gap=12).items():
        assert answer.token_ids == alone[name].token_ids, name
    drafted = engine.stats().rounds_by_drafted
    assert drafted[0] > 5 and drafted[3] > 5, "one of the two kinds never ran"


def test_after_warmup_grammars_compile_nothing_and_move_no_array_by_themselves(
    target: Target,
    draft: Eagle3Draft,
    constrained: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ready(target, draft, sizes(3))
    engine.warmup()
    monkeypatch.setattr("eagle3_jax.engine.programs.executor.compile_program", None)
    with jax.transfer_guard("disallow"):
        drive(engine, constrained[:10])
    assert engine.stats().num_accepted_tokens > 10
