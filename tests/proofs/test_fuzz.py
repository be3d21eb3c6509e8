"""Proof (c): with speculation on, random traffic gets the tokens it gets with speculation off.

Plain decoding answers every request alone. The engine under proof batches them as they arrive,
cancels some, runs out of pages and preempts. Outside exact mode a difference must be a tie by the
rule of docs/architecture.md, in at most 1 answer of 500; exact mode has no exception.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from broken_verify import BROKEN, one_more
from driving import Answer, drive, sizes
from tiny import MINIMAX, reduced_draft, tiny_draft, tiny_target
from toy_tokenizer import ToyTokenizer
from traffic import Run, drive_waves, random_requests

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs import executor
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative import round as round_module
from serve.bench.equality.ties import Scorer, describe
from serve.bench.studies.equal import REQUESTS_PER_TIE

EOS = (5, 40)
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


@dataclass(frozen=True)
class Proof:
    """The pair under proof, and its engines."""

    target: Target
    draft: Eagle3Draft

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        draft = self.draft if speculative else None
        tokenizer = ToyTokenizer()
        engine = Engine(self.target, draft, config, tokenizer=tokenizer, eos_token_ids=EOS)
        return engine

    def plain(self, requests: list[Request], *, exact: bool) -> dict[str, Answer]:
        """Each alone and without speculation; in exact mode through programs of the same width."""
        alone = sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
        engine = self.engine(sizes(3, exact=True) if exact else alone, speculative=False)
        answers: dict[str, Answer] = {}
        for request in requests:
            sampling = replace(request.sampling, num_speculative_tokens=None)
            answers |= drive(engine, [replace(request, sampling=sampling)])
        assert engine.stats().num_draft_tokens == 0
        return answers

    def check(self, config: EngineConfig, requests: list[Request]) -> None:
        """Speculative answers are the plain ones; the traffic was as wild as it should be."""
        expected = self.plain(requests, exact=config.exact)
        engine = self.engine(config, speculative=True)
        run = drive_waves(engine, requests, np.random.default_rng(len(requests)))
        differences = self.differences(requests, run, expected)
        allowed = 0 if config.exact else math.ceil(len(requests) / REQUESTS_PER_TIE)
        assert len(differences) <= allowed, differences
        stats = engine.stats()
        assert stats.free_pages == stats.total_pages
        assert run.cancelled and stats.num_preemptions, "nothing was cancelled or preempted"
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens

    def differences(
        self, requests: list[Request], run: Run, expected: dict[str, Answer]
    ) -> list[str]:
        """A line for each answer that differs by a tie; other differences fail at once."""
        scorer, lines = Scorer(self.target, 64, EOS), []
        for request in requests:
            name = request.request_id
            found, plain = run.answers[name], expected[name]
            ours, theirs = found.token_ids, plain.token_ids
            if name in run.cancelled:
                shared = min(len(ours), len(theirs))
                ours, theirs = ours[:shared], theirs[:shared]
            elif ours == theirs:
                assert (found.text, found.finish) == (plain.text, plain.finish)
            tie = scorer.explain(name, request.prompt_ids, request.sampling, ours, theirs)
            if tie:
                assert tie.cause, f"{describe(tie)}; {request}"
                lines.append(describe(tie))
        return lines


@pytest.fixture(scope="module")
def proof(target: Target, draft: Eagle3Draft) -> Proof:
    return Proof(target, draft)


@pytest.mark.parametrize("case", LONG_CASES)
def test_speculation_changes_no_answer(proof: Proof, case: str, long: bool) -> None:
    if case not in CASES and not long:
        pytest.skip("part of the long form")
    rng = np.random.default_rng(list(LONG_CASES).index(case))
    count = PER_CASE_LONG if long else PER_CASE
    proof.check(LONG_CASES[case], random_requests(rng, count))


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
    if wrong is not one_more and not long:
        pytest.skip("part of the long form")
    requests = random_requests(np.random.default_rng(0), PER_CASE)
    expected = proof.plain(requests, exact=False)
    monkeypatch.setattr(round_module, "verify", wrong)
    compile_rounds_anew(monkeypatch, executor)
    engine = proof.engine(sizes(3), speculative=True)
    run = drive_waves(engine, requests, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, run, expected)
