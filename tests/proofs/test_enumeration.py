"""Proof (a): over every draft and noise of tiny vocabularies, outputs follow the target.

Coupled sampling reduces to one statement: what verify commits is what plain decoding commits,
whatever was drafted. It is checked for all draft strings. Then whole generations are counted over
all noise of an idealised space and over all accept paths: the counts are the target's, to the unit.
"""

from dataclasses import replace

import jax
import numpy as np
import pytest
from broken_verify import BROKEN, one_position_late
from ideal_noise import IdealNoise
from slot_rows import option_rows
from tree_decoding import PROMPT, Decoder, Verify, repeated, strings_of, with_seeds
from tree_model import TreeModel, all_strings

from eagle3_jax.sampling import sampler as sampling
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.verify import verify

VOCAB = 4
OPTIONS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_p=0.9),
    SamplingParams(temperature=1.4, top_k=3),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=1.2, min_tokens=2, stop_token_ids=[1]),
    SamplingParams(temperature=0.9, top_p=0.8, top_k=3, min_p=0.05),
)
SMALL, LENGTH = 3, 3
"""Vocabulary and answer length of the counted proofs: 3 ** 9 outcomes, 4 ** 9 in the long form."""
GAP = 1.5
"""How far the draft's logits are from the target's."""
COUNTED = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.3, top_k=2),
)
CHANGING_THE_DISTRIBUTION = tuple(f for f in BROKEN if f is not one_position_late)
"""Noise of another position is still noise: the distribution stands, the tokens don't."""


def check_every_draft(verify: Verify, k: int, seeds: int) -> None:
    """All vocab ** k drafts x options x seeds: what is committed is the longest prefix of the
    drafts that plain decoding would have said too, and plain decoding's next token."""
    strings = all_strings(VOCAB, k)
    requests = [replace(option, seed=seed) for option in OPTIONS for seed in range(seeds)]
    options = option_rows(requests, PROMPT)
    model = TreeModel(VOCAB, k + 1, seed=k)
    plain = np.repeat(Decoder(model, options).plain(k + 1), len(strings), axis=0)
    drafts = np.tile(strings, (len(requests), 1))
    batch = len(drafts)
    result = Decoder(model, repeated(options, len(strings))).one_round(
        jax.jit(verify), np.zeros((batch, 0), int), np.zeros(batch, int), drafts, np.full(batch, 99)
    )
    agree = np.cumprod(drafts == plain[:, :k], axis=1).sum(axis=1)
    np.testing.assert_array_equal(result.num_accepted, agree)
    committed = np.arange(k + 1) <= agree[:, None]
    np.testing.assert_array_equal(np.asarray(result.token_ids)[committed], plain[committed])
    assert set(agree.tolist()) == set(range(k + 1)), "some number of accepted drafts is untested"


def check_counts(verify: Verify, k: int, options: SamplingParams, noise: IdealNoise) -> None:
    """Over all noise, every answer comes as often as the target's distribution says, exactly.

    The draft is a model of its own with the same noise: some outcomes accept, some reject.
    """
    rows = with_seeds(option_rows([options], PROMPT), noise.outcomes)
    target = TreeModel(SMALL, LENGTH, seed=1)
    drafting = Decoder(target.moved(GAP, LENGTH + k, seed=2), rows)
    tokens, paths = Decoder(target, rows).rounds(
        jax.jit(lambda *inputs: verify(*inputs)),  # as it is now: tests replace what it calls
        lambda histories, lengths: drafting.drafts(histories, lengths, k),
        LENGTH,
        k,
    )
    counts = dict(strings_of(tokens, SMALL))
    assert counts == distribution_of_answers(target, options, noise)
    assert sum(counts.values()) == len(noise.outcomes)
    assert len(np.unique(paths, axis=0)) > 1, "a single accept path was taken"


def distribution_of_answers(
    target: TreeModel, options: SamplingParams, noise: IdealNoise
) -> dict[tuple[int, ...], int]:
    """Outcomes of each answer: the noise of positions is independent, so counts multiply."""
    distribution: dict[tuple[int, ...], int] = {(): 1}
    for length in range(LENGTH):
        longer: dict[tuple[int, ...], int] = {}
        for history, count in distribution.items():
            logits = target.logits(np.array([history], int).reshape(1, -1), np.array([length]))[0]
            counts = noise.counted_distribution(scores(logits, options))
            for token in np.flatnonzero(counts):
                longer[*history, int(token)] = count * int(counts[token])
        distribution = longer
    return distribution


def scores(logits: np.ndarray, options: SamplingParams) -> np.ndarray:
    """Scaled logits, without what top-k bars: all that these counted distributions use."""
    scaled = logits / np.float32(options.temperature)
    barred = options.top_k and scaled < np.sort(scaled)[-options.top_k]
    return np.where(barred, -np.inf, scaled)


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch, long: bool) -> IdealNoise:
    """Noise of few outcomes in place of the hash."""
    ideal = IdealNoise(4 if long else 3, SMALL, LENGTH, first_position=len(PROMPT))
    monkeypatch.setattr(sampling, "gumbel", ideal.gumbel())
    return ideal


@pytest.mark.parametrize("k", [1, 2, 3])
def test_whatever_is_drafted_the_plain_tokens_are_committed(k: int, long: bool) -> None:
    check_every_draft(verify, k, seeds=256 if long else 16)


@pytest.mark.parametrize(("k", "options"), [*enumerate(COUNTED, 1)], ids=["plain", "cold", "top-k"])
def test_over_all_noise_and_accept_paths_the_distribution_is_the_targets(
    k: int, options: SamplingParams, noise: IdealNoise
) -> None:
    check_counts(verify, k, options, noise)


@pytest.mark.parametrize("wrong", BROKEN, ids=lambda f: f.__name__)
def test_the_proof_over_drafts_notices(wrong: Verify) -> None:
    with pytest.raises(AssertionError):
        check_every_draft(wrong, 2, seeds=16)


@pytest.mark.parametrize("wrong", CHANGING_THE_DISTRIBUTION, ids=lambda f: f.__name__)
def test_the_proof_over_noise_notices(wrong: Verify, noise: IdealNoise) -> None:
    with pytest.raises(AssertionError, match="=="):
        check_counts(wrong, 2, COUNTED[0], noise)
