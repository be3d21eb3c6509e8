"""Proof (c): with speculation on, random traffic gets the tokens it gets with speculation off.

Plain decoding answers every request alone. The engine under proof batches them as they arrive,
cancels some, runs out of pages and preempts. Outside exact mode a difference must be a tie by the
rule of docs/architecture.md, in at most 1 answer of 500; exact mode has no exception.
"""

from collections.abc import Callable

import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from broken_verify import BROKEN
from driving import sizes
from engine_proof import Proof
from tiny import MINIMAX, reduced_draft, tiny_draft, tiny_target
from traffic import drive_waves, random_requests

from eagle3_jax.engine.programs import executor
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative import round as round_module

CASES = {
    "k=3": sizes(3),
    "exact": sizes(3, exact=True),
    "tree": sizes(3, eagle_topk=3, num_draft_tokens=9),
}
LONG_CASES = CASES | {
    "k=1": sizes(1, page_size=16, num_pages=9),
    "k=6": sizes(6, page_size=2, num_pages=60),
    "deep tree": sizes(6, page_size=2, num_pages=60, eagle_topk=2, num_draft_tokens=20),
    "wide tree": sizes(2, page_size=16, num_pages=12, eagle_topk=8, num_draft_tokens=40),
}
PER_CASE, PER_CASE_LONG = 30, 500
PER_MINIMAX_CASE = 150


@pytest.fixture(scope="module")
def proof(target: Target, draft: Eagle3Draft) -> Proof:
    return Proof(target, draft)


@pytest.mark.parametrize("case", LONG_CASES)
def test_speculation_changes_no_answer(proof: Proof, case: str, long: bool) -> None:
    """The short form of the first three is that of worlds, in tests/worlds."""
    if not long:
        pytest.skip("part of the long form")
    rng = np.random.default_rng(list(LONG_CASES).index(case))
    proof.check(LONG_CASES[case], random_requests(rng, PER_CASE_LONG))


@pytest.mark.parametrize("make_draft", [tiny_draft, reduced_draft])
def test_speculation_changes_no_answer_of_minimax(
    make_draft: Callable[[Target], Eagle3Draft], long: bool
) -> None:
    """With drafts of the whole vocabulary and of some of it."""
    target = tiny_target(config=MINIMAX)
    rng = np.random.default_rng(len(LONG_CASES))
    requests = random_requests(rng, PER_CASE_LONG if long else PER_MINIMAX_CASE)
    Proof(target, make_draft(target)).check(CASES["k=3"], requests)


@pytest.mark.parametrize("wrong", BROKEN, ids=lambda f: f.__name__)
def test_the_proof_notices(
    proof: Proof, wrong: object, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not long:
        pytest.skip("part of the long form")
    requests = random_requests(np.random.default_rng(0), PER_CASE)
    expected = proof.plain(requests, CASES["k=3"])
    monkeypatch.setattr(round_module, "verify", wrong)
    compile_rounds_anew(monkeypatch, executor)
    engine = proof.engine(sizes(3), speculative=True)
    run = drive_waves(engine, requests, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, run, expected)
