"""Random requests with random options, and the traffic they come in."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from driving import Answer, drive
from tiny import VOCAB

from eagle3_jax.engine import Engine, Request
from eagle3_jax.sampling.params import SamplingParams

STOPS = ["ab", "c", "é", "aab", "中a"]
WAVE = 16


def random_requests(
    rng: np.random.Generator, count: int, *, typical: bool = False
) -> list[Request]:
    """Seeded requests of every kind; prompts of 1 to 20 tokens that often begin alike, answers of
    1 to 40."""
    common = rng.integers(0, VOCAB, 16).tolist()

    def prompt() -> list[int]:
        own = rng.integers(0, VOCAB, rng.integers(1, 5)).tolist()
        return common[: rng.integers(0, 17)] + own

    return [Request(str(i), prompt(), random_options(rng, typical=typical)) for i in range(count)]


def random_options(rng: np.random.Generator, *, typical: bool = False) -> SamplingParams:
    """Each option is off about as often as it is on."""

    def sometimes(value: Any, off: Any) -> Any:
        return value if rng.random() < 0.5 else off

    most = int(rng.integers(1, 41))
    return SamplingParams(
        temperature=float(rng.choice([0.0, 0.4, 0.8, 1.0, 1.5])),
        top_p=sometimes(float(rng.uniform(0.3, 1)), 1.0),
        top_k=sometimes(int(rng.integers(1, 30)), 0),
        min_p=sometimes(float(rng.uniform(0, 0.3)), 0.0),
        typical_p=float(rng.uniform(0.5, 1)) if typical and rng.random() < 0.1 else 1.0,
        seed=int(rng.integers(0, 2**63)),
        max_tokens=most,
        min_tokens=sometimes(int(rng.integers(0, most + 1)), 0),
        stop=sometimes([str(rng.choice(STOPS))], []),
        stop_token_ids=sometimes(rng.integers(0, VOCAB, 2).tolist(), []),
        ignore_eos=sometimes(True, False),
        include_stop_str_in_output=sometimes(True, False),
        num_speculative_tokens=sometimes(int(rng.integers(0, 4)), None),
        **(token_options(rng) if rng.random() < 0.4 else {}),
    )


def token_options(rng: np.random.Generator) -> dict[str, Any]:
    """Options that look at token ids; enough ids stay allowed for every stop to be barred."""
    ids = rng.permutation(VOCAB).tolist()
    kinds: list[dict[str, Any]] = [
        {"logit_bias": {token: float(rng.uniform(-4, 4)) for token in ids[:5]}},
        {"allowed_token_ids": ids[: int(rng.integers(30, VOCAB))]},
        {"bad_words_ids": [ids[:1], ids[1:3], ids[3:6]]},
        {"repetition_penalty": float(rng.uniform(0.7, 1.6))},
        {"presence_penalty": float(rng.uniform(-1, 2))},
        {"frequency_penalty": float(rng.uniform(-1, 2))},
    ]
    chosen = rng.choice(len(kinds), size=rng.integers(1, 4), replace=False)
    return {name: value for i in chosen for name, value in kinds[i].items()}


def without_logits(rng: np.random.Generator, count: int) -> list[Request]:
    """Random requests whose tokens a kernel may choose: no cuts, and no option of tokens."""
    off: dict[str, Any] = {"typical_p": 1.0, "top_p": 1.0, "top_k": 0, "logit_bias": {}}
    off |= {"allowed_token_ids": None, "bad_words_ids": (), "repetition_penalty": 1.0}
    off |= {"presence_penalty": 0.0, "frequency_penalty": 0.0}
    return [
        replace(request, sampling=replace(request.sampling, **off))
        for request in random_requests(rng, count, typical=True)
    ]


@dataclass
class Run:
    """Answers of a whole run, and who was cancelled in it."""

    answers: dict[str, Answer]
    cancelled: set[str]


def drive_waves(engine: Engine, requests: list[Request], rng: np.random.Generator) -> Run:
    """Requests in waves of random arrival gaps; about one in five is to be cancelled."""
    run = Run({}, set())
    for start in range(0, len(requests), WAVE):
        wave = requests[start : start + WAVE]
        cancel_at = {r.request_id: int(rng.integers(0, 12)) for r in wave if rng.random() < 0.2}
        gap = int(rng.integers(0, 4))
        run.answers |= drive(engine, wave, arrival_gap=gap, cancel_at=cancel_at)
    run.cancelled = {name for name, a in run.answers.items() if a.finish[0] == "abort"}
    return run
