"""Hostile grammars end processes of their own, and nobody else waits for them."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from fake_engine import CharTokenizer, FakeEngine
from fake_server import Served, served_by
from spelling_tokenizer import EOS, SpellingTokenizer
from tiny import VOCAB

from eagle3_jax.engine.engine import load_grammars
from eagle3_jax.engine.grammars.interface import Grammars
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.engine import grammar_pool, grammar_trials

pytest.importorskip("llguidance")
from serve.engine.grammar_trials import GrammarTrials

PATH = "/v1/completions"
WORDS = " & ".join(f"/.*w{n}.*/" for n in range(500))
HOSTILE: dict[str, dict[str, Any]] = {
    "multiples in a range": {
        "json": {"type": "integer", "multipleOf": 1234567, "minimum": -(10**15), "maximum": 10**15}
    },
    "properties": {"json": {"type": "object", "properties": {f"p{n}": {} for n in range(5000)}}},
    "intersections": {"grammar": f"start: A\nA: {WORDS}"},
    "a product": {"grammar": "start: A\nA: ~(/.*a.{30}/) & /.*b.{29}/"},
    "stack overflow": {
        "grammar": "start: r0\n"
        + "".join(f'r{n}: "a" r{n + 1}\n' for n in range(9000))
        + 'r9000: "b"'
    },
    "a fixed text of 100,000": {"regex": "(a{1000}){100000}"},
}


@pytest.fixture(scope="module")
def trials(request: pytest.FixtureRequest) -> Iterator[GrammarTrials]:
    """Trials of a small vocabulary, with shorter limits than a server's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grammar_trials, "CPU_SECONDS", 0.3)
        grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
        assert grammars is not None
        with ExitStack() as owner:
            yield GrammarTrials(grammars.prepare(), owner)


@pytest.fixture
def grammars(trials: GrammarTrials) -> Grammars:
    """That know nothing yet."""
    grammars = load_grammars(SpellingTokenizer(), VOCAB, (EOS,))
    assert grammars is not None
    grammars.try_by(trials)
    return grammars


@pytest.fixture
def server(grammars: Grammars) -> Iterator[Served]:
    """A server whose engine takes no notice of forms."""
    with served_by(FakeEngine(), CharTokenizer(), grammars=grammars) as running:
        yield running


def post(server: Served, form: dict[str, Any]) -> Any:
    asked = {"prompt": "a", "max_tokens": 2, "structured_outputs": form}
    return server.http.post(PATH, json=asked)


def test_a_choice_is_answered_before_the_six_hostile_grammars_that_came_first(
    server: Served,
) -> None:
    ended: list[str] = []
    with ThreadPoolExecutor(len(HOSTILE)) as clients:
        answers = {name: clients.submit(post, server, form) for name, form in HOSTILE.items()}
        for answer in answers.values():
            answer.add_done_callback(lambda _: ended.append("hostile"))
        while len(server.service.grammars._compiling) < 3:  # type: ignore
            assert len(ended) < 4, "too quick to be hostile"
        assert post(server, {"choice": ["yes", "no"]}).status_code == 200
        ended.append("choice")
        assert server.http.get("/health").status_code == 200
    assert ended.index("choice") <= 3, ended
    for name, answer in answers.items():
        found = answer.result()
        message = found.json()["error"]["message"]
        assert found.status_code == 400, name
        assert message.startswith("structured_outputs: ") and "\n" not in message, name
        assert len(message) < 500 and found.json()["error"]["param"] == "structured_outputs"
    assert server.service.grammars.grammars._cache._sum() < 2**20, "the choice alone is kept"  # type: ignore


@pytest.mark.parametrize(
    "form", [{"choice": ["ab", "b"]}, {"regex": "[ab]{3}x*"}, {"json": {"type": "object"}}]
)
def test_what_is_tried_is_compiled_and_known_by_its_bytes(
    grammars: Grammars, form: dict[str, Any]
) -> None:
    outputs = StructuredOutputs(**form)
    grammars.compile(outputs)
    assert grammars.known(outputs)
    assert 10_000 < grammars._cache._sum() < 1_000_000  # type: ignore


def test_what_no_answer_satisfies_is_said_by_its_trial(grammars: Grammars) -> None:
    with pytest.raises(ValueError, match="no answer satisfies"):
        grammars.compile(StructuredOutputs(grammar="start: start"))


def test_a_grammar_that_holds_too_much_is_refused(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammar_trials, "GRAMMAR_BYTES", 1000)
    with pytest.raises(ValueError, match="holds 0 MiB, and may hold 0"):
        grammars.compile(StructuredOutputs(choice=["a"]))


class Blocked:
    """Grammars that compile when they are let."""

    def __init__(self) -> None:
        self.let, self.begun = threading.Event(), threading.Semaphore(0)

    def known(self, constraint: StructuredOutputs) -> None:
        """Nothing is."""

    def compile(self, constraint: StructuredOutputs) -> Any:
        self.begun.release()
        if constraint.regex and constraint.regex.startswith("slow"):
            assert self.let.wait(60)


def test_grammars_fill_no_thread_that_others_need_and_too_many_are_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grammar_pool, "MOST_WAITING", 7)
    blocked = Blocked()
    with (
        served_by(FakeEngine(), CharTokenizer(), grammars=blocked) as server,
        ThreadPoolExecutor(8) as clients,
    ):
        slow = [clients.submit(post, server, {"regex": f"slow{n}"}) for n in range(6)]
        for _ in range(6):
            assert blocked.begun.acquire(timeout=60)
        same = clients.submit(post, server, {"regex": "slow0"})
        long = {"prompt": "a" * 30_000, "max_tokens": 1}  # Tokenised in a thread.
        assert server.http.post(PATH, json=long).status_code == 400
        assert post(server, {"choice": ["yes"]}).status_code == 200
        last = clients.submit(post, server, {"regex": "slow7"})
        assert blocked.begun.acquire(timeout=60) and blocked.begun.acquire(timeout=60)
        refused = post(server, {"regex": "slow8"})
        assert refused.status_code == 503 and refused.headers["Retry-After"] == "2"
        assert "7 grammars" in json.loads(refused.text)["error"]["message"]
        blocked.let.set()
        assert {answer.result().status_code for answer in [*slow, same, last]} == {200}
    assert not blocked.begun.acquire(blocking=False), "the same form was compiled twice"
