"""Where each token of an answer comes from: the target, or a draft of its round."""

from collections import Counter
from typing import Any

import pytest
from driving import Answer, drive
from simulated_device import VOCAB, SimulatedRunner, simulated_engine
from toy_tokenizer import ToyTokenizer

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams

K = 3
ROOMY: dict[str, Any] = {"max_model_len": 48, "max_num_seqs": 3, "page_size": 4}
TIGHT = ROOMY | {"num_pages": 18, "enable_prefix_caching": False}


def origins_on_device(
    monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> dict[tuple[str, int], int]:
    """(request, position) -> which draft of its round the device accepted there; 0 for none."""
    runner: Any = engine._runner
    assert isinstance(runner, SimulatedRunner)
    advance, found = runner._advance, {}

    def record(sequence: Any, drafts: int) -> Any:
        start = len(runner.slots[sequence.slot].tokens)
        report = advance(sequence, drafts)
        accepted = len(report.token_ids) - 1
        for index in range(accepted + 1):
            place = sequence.request.request_id, start + index
            found[place] = index + 1 if index < accepted else 0
        return report

    monkeypatch.setattr(runner, "_advance", record)
    return found


def requests(**sampling: Any) -> list[Request]:
    params = [SamplingParams(max_tokens=30, seed=i, **sampling) for i in range(8)]
    return [Request(f"{i}", [i, 2 * i % VOCAB, 5], params[i]) for i in range(8)]


def counted(answers: dict[str, Answer]) -> tuple[int, ...]:
    """Tokens by the position of their draft, from 1."""
    counts = Counter(origin for answer in answers.values() for origin in answer.origins)
    return tuple(counts[position] for position in range(1, K + 1))


@pytest.mark.parametrize("sampling", [{}, {"stop_token_ids": [3]}, {"stop": ["ba", "aab"]}])
@pytest.mark.parametrize("sizes", [ROOMY, TIGHT, TIGHT | {"exact": True}])
def test_origins_are_what_the_device_did_however_an_answer_ends(
    monkeypatch: pytest.MonkeyPatch, sizes: dict[str, Any], sampling: dict[str, Any]
) -> None:
    """Token by token, with ends inside a run, tokens that stop strings hold back or cut, and
    answers that a preemption made start again."""
    engine = simulated_engine(monkeypatch, EngineConfig(K, **sizes), tokenizer=ToyTokenizer())
    device = origins_on_device(monkeypatch, engine)
    asked = requests(**sampling)
    answers = drive(engine, asked)
    for request in asked:
        answer, length = answers[request.request_id], len(request.prompt_ids)
        for output in answer.outputs:
            assert len(output.origins) == len(output.token_ids)
        places = range(length, length + len(answer.token_ids))
        expected = [device.get((request.request_id, place), 0) for place in places]
        assert answer.origins == expected
    stats = engine.stats()
    assert all(counted(answers))
    if not sampling:
        assert counted(answers) == stats.num_accepted_per_pos
        assert bool(stats.num_preemptions) == (sizes is not ROOMY)


def test_origins_are_the_rounds_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the prefill's token every round gives its accepted drafts and the target's token."""
    engine = simulated_engine(monkeypatch, EngineConfig(K, **ROOMY))
    for answer in drive(engine, requests(stop_token_ids=[3])).values():
        rounds = [r for output in answer.outputs for r in output.rounds]
        runs = ([*range(1, r.accepted + 1), 0][: r.kept] for r in rounds)
        assert answer.origins == [0, *(origin for run in runs for origin in run)]
