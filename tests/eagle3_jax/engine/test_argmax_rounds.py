"""Rounds that choose tokens without written logits: who gets them, and the tokens they give.

The engine has the programs of a GPU and the operations of a CPU.
"""

from collections import Counter
from typing import Any

import pytest
from driving import Answer, drive, sizes
from tiny import VOCAB

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.choose_k import GoodputChooser
from eagle3_jax.engine.programs.program import ProgramKind, has_argmax
from eagle3_jax.engine.programs.runner import Runner
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs

FREE: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "typical_p": 0.2},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.8, "logit_bias": {5: 4.0, 60: 3.5, 2: -100.0}},
    {"temperature": 1.2, "min_tokens": 6, "stop_token_ids": range(30, 37)},
    {"temperature": 0.6, "num_speculative_tokens": 1},
]
"""Options that need no written logits."""
BOUND: list[dict[str, Any]] = [
    {"temperature": 0.5, "top_p": 0.95},
    {"temperature": 0.5, "top_k": 20},
    {"temperature": 0.5, "typical_p": 0.9},
    {"temperature": 0.0, "repetition_penalty": 1.1},
    {"temperature": 0.0, "presence_penalty": 0.5},
    {"temperature": 0.0, "logprobs": 0},
    {"temperature": 0.0, "bad_words_ids": [[3]]},
    {"temperature": 0.0, "allowed_token_ids": range(90)},
    {"temperature": 0.0, "logit_bias": {5: 4.0}, "frequency_penalty": 0.1},
    {"temperature": 0.0, "logit_bias": {i: 1.0 for i in range(33)}},
    {"temperature": 0.0, "min_tokens": 6, "stop_token_ids": range(30, 39)},
]
"""Options that do."""


@pytest.fixture
def gpu_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eagle3_jax.engine.programs.program.chooses_in_kernel", lambda: True)


def asked(options: list[dict[str, Any]], prefix: str) -> list[Request]:
    shared: dict[str, Any] = {"max_tokens": 20}
    return [
        Request(
            f"{prefix}{i}",
            [(5 * i + 3 * j) % VOCAB for j in range(2 + 4 * (i % 8))],
            SamplingParams(seed=i, **(shared | chosen)),
        )
        for i, chosen in enumerate(options)
    ]


def run(engine: Engine, requests: list[Request]) -> tuple[dict[str, Answer], Counter[str]]:
    """The answers, and how often each kind of program ran."""
    kinds: Counter[str] = Counter()
    dispatch = engine._runner._run

    def counted(program: Any, *inputs: object) -> Any:
        kinds[program.kind] += 1
        return dispatch(program, *inputs)

    engine._runner._run = counted
    return drive(engine, requests), kinds


@pytest.mark.long
def test_rounds_without_logits_give_the_tokens_of_those_with_them(
    target: Target, draft: Eagle3Draft, plain_engine: Engine, gpu_choice: None
) -> None:
    """While a neighbour needs logits, and behind its end. None of these requests has a tie.

    The world of interpreted kernels has rounds without such neighbours.
    """
    free = asked(FREE, "free")
    plain = {r.request_id: drive(plain_engine, [r])[r.request_id].token_ids for r in free}
    answers, kinds = run(Engine(target, draft, sizes(3)), [*asked(BOUND[:1], "bound"), *free])
    assert kinds["argmax round"] and kinds["argmax prefill"] and kinds["round"]
    assert {name: answers[name].token_ids for name in plain} == plain


@pytest.mark.parametrize("in_kernel", [False, True], ids=["written", "in kernel"])
def test_a_round_is_timed_as_the_program_that_runs(
    target: Target, draft: Eagle3Draft, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    """Each option runs alone and beside a request without options, so that the time of a full round
    is not taken for that of a lean one."""
    monkeypatch.setattr("eagle3_jax.engine.programs.program.chooses_in_kernel", lambda: in_kernel)
    config = sizes(3, adaptive=True, batch_buckets=(1, 4))
    runner, chooser, ran = Runner(target, draft, config), GoodputChooser(config), []
    monkeypatch.setattr(runner, "_dispatch", lambda program, *_: ran.append(program))
    for request in asked([*FREE, *BOUND], "x"):
        member, free = (Sequence.of(r, (), 64, None) for r in (request, *asked(FREE[:1], "free")))
        for members in ([member], [member, free]):
            choice = chooser.choose(members)
            runner.round(members, choice.drafts)
            program = ran.pop()
            assert program._replace(widths=None) == choice.program
            if in_kernel and not member.needs_logits:
                assert program.kind is ProgramKind.ARGMAX_ROUND
            else:
                typical = request.sampling.temperature > 0 and request.sampling.typical_p < 1
                looks = typical or member.controlled or member.wants_logprobs
                assert program.kind is (ProgramKind.FULL_ROUND if looks else ProgramKind.ROUND)


def needs_logits(**options: Any) -> bool:
    request = Request("x", [1], SamplingParams(**options))
    return Sequence.of(request, (7,), 64, None).needs_logits


def test_only_options_that_look_at_the_whole_row_need_it() -> None:
    assert not any(needs_logits(**options) for options in FREE)
    assert all(needs_logits(**options) for options in BOUND)
    # Its masks are rounds of two programs, which are not chosen here.
    assert not needs_logits(temperature=0.0, structured_outputs=StructuredOutputs(regex="a"))


@pytest.mark.parametrize(
    "changes",
    [
        {"exact": True},
        {"rejection_sample_method": "standard"},
        {"eagle_topk": 2, "num_draft_tokens": 5},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_engines_that_decide_otherwise_have_no_such_programs(
    changes: dict[str, Any], gpu_choice: None
) -> None:
    assert has_argmax(sizes(3)) and not has_argmax(sizes(3, **changes))
