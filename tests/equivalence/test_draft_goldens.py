"""Drafts against what specforge's, TorchSpec's and EAGLE's own models computed: both attentions,
both kinds of vocabulary, and weights that AMD Quark quantised."""

from typing import Any

import numpy as np
import pytest
from cache_free import draft_chain, padded
from oracle_files import ALL_DRAFTS, MINIMAX_DRAFT, PROMPTS, golden_arrays
from tolerances import FED_BACK_ACTIVATIONS_RMS, FLOAT32_ATOL

from eagle3_jax.full_pass import draft_forward

AUX = golden_arrays("draft_mha_bf16")
NAMES = (*ALL_DRAFTS, MINIMAX_DRAFT)
GOLDEN = {name: AUX | golden_arrays(name) for name in NAMES}
each_draft = pytest.mark.parametrize(
    ("pair", "name"), list(zip(NAMES, NAMES, strict=True)), indirect=["pair"]
)
each_prompt = pytest.mark.parametrize("prompt", PROMPTS)


@each_prompt
@each_draft
def test_states_and_logits_are_those_of_the_trainers(pair: Any, name: str, prompt: int) -> None:
    ids, aux = GOLDEN[name][f"p{prompt}.ids"][1:], GOLDEN[name][f"p{prompt}.aux"]
    logits, hidden = draft_forward(pair[1], padded(ids)[None], padded(aux)[None])
    for ours, key in ((hidden, "hidden"), (logits, "logits")):
        golden = GOLDEN[name][f"p{prompt}.{key}"]
        last_rows = np.asarray(ours)[0, len(ids) - len(golden) : len(ids)]
        np.testing.assert_allclose(last_rows, golden, rtol=0, atol=FLOAT32_ATOL, err_msg=key)


@each_prompt
@each_draft
def test_six_greedy_steps_on_the_drafts_own_state(pair: Any, name: str, prompt: int) -> None:
    golden = {k: v for k, v in GOLDEN[name].items() if k.startswith(f"p{prompt}.")}
    chain = draft_chain(pair[1], golden[f"p{prompt}.ids"][1:], golden[f"p{prompt}.aux"], steps=6)
    assert chain.tokens == golden[f"p{prompt}.chain_tokens"].tolist()
    for ours, key in ((chain.logits, "chain_logits"), (chain.states, "chain_hidden")):
        theirs = golden[f"p{prompt}.{key}"]
        if name.endswith("_actquant"):
            assert np.sqrt(np.mean((ours - theirs) ** 2)) < FED_BACK_ACTIVATIONS_RMS
        else:
            # States reach 25, whose last bit is 2e-6, and six steps feed them back.
            np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=FLOAT32_ATOL)
