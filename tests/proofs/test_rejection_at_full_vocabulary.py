"""Proof (b) for rejection sampling: what is committed at 163,840 ids follows the target."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_rejection import never_subtracts_beyond_the_draft
from exact_distribution import check_draws
from slot_rows import decoding_rows, option_rows
from test_distribution_at_full_vocabulary import VOCAB, logits_of_a_model

from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative.drafts import Drafts, draw_with_probs
from eagle3_jax.speculative.rejection import verify_by_rejection

pytestmark = pytest.mark.optimised

K, BATCH, SEQ_LEN, GAP = 2, 4, 20, 1.5
SETTINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_p=0.9, min_p=0.02),
)


def committed_tokens(verify: Callable, setting: SamplingParams, draws: int) -> np.ndarray:
    """Tokens of rounds whose every row has the same logits; the draft's are GAP off."""
    rng = np.random.default_rng(3)
    target = logits_of_a_model()
    draft = target + rng.normal(scale=GAP, size=VOCAB).astype(np.float32)

    @jax.jit
    def one_round(target: jax.Array, draft: jax.Array, options: SamplingRows):
        lengths = np.full(BATCH, SEQ_LEN)
        rows = decoding_rows(options, lengths, lengths + 99, K)
        positions = jnp.broadcast_to(SEQ_LEN + 1 + jnp.arange(K), (BATCH, K))
        proposed = jnp.broadcast_to(draft, (BATCH, K, VOCAB))
        drafts = Drafts(*draw_with_probs(proposed, positions, options, None, VOCAB))
        result = verify(jnp.broadcast_to(target, (BATCH, K + 1, VOCAB)), drafts, rows)
        return result.token_ids, result.num_accepted

    found: list[int] = []
    for seed in range(0, 1_000_000, BATCH):
        if len(found) >= draws:
            break
        options = option_rows([replace(setting, seed=seed + i) for i in range(BATCH)], [0])
        tokens, accepted = jax.device_get(one_round(target, draft, options))
        found += tokens[np.arange(K + 1) <= accepted[:, None]].tolist()
    return np.array(found)


@pytest.mark.parametrize("setting", SETTINGS, ids=["plain", "filtered"])
def test_committed_tokens_follow_the_targets_distribution(
    setting: SamplingParams, long: bool
) -> None:
    draws = committed_tokens(verify_by_rejection, setting, 4000 if long else 160)
    check_draws(draws, logits_of_a_model(), setting)


def test_the_proof_notices_tokens_of_the_drafts_distribution() -> None:
    draws = committed_tokens(never_subtracts_beyond_the_draft, SETTINGS[0], 160)
    with pytest.raises(AssertionError, match="distribution"):
        check_draws(draws, logits_of_a_model(), SETTINGS[0])
