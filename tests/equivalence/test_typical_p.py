"""typical_p keeps what transformers' TypicalLogitsWarper keeps, behind the filters before it."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from sampling_rows import sampling_rows
from sweeps import sweep
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from eagle3_jax.sampling.sampler import process_logits

PROCESS = jax.jit(process_logits)


OTHERS = [
    {"temperature": 1.0},
    {"temperature": 0.6, "top_p": 0.9},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.8},
]
CASES = product([7, 300, 5000], [0.05, 0.5, 0.9, 0.999], OTHERS)
KEPT = [(7, 0.5, OTHERS[0]), (5000, 0.05, OTHERS[0]), (5000, 0.9, OTHERS[1])]
KEPT += [(5000, 0.999, OTHERS[2])]


@pytest.mark.parametrize(("vocab", "typical_p", "others"), sweep(CASES, KEPT), ids=str)
def test_the_same_tokens_are_kept_with_the_same_distribution(
    vocab: int, typical_p: float, others: dict[str, float]
) -> None:
    rng = np.random.default_rng(vocab)
    logits = (rng.normal(size=(40, vocab)) * rng.uniform(0.3, 4, (40, 1))).astype(np.float32)
    warpers = LogitsProcessorList([TemperatureLogitsWarper(others["temperature"])])
    if "top_k" in others:
        warpers.append(TopKLogitsWarper(int(others["top_k"])))
    if "top_p" in others:
        warpers.append(TopPLogitsWarper(others["top_p"]))
    warpers.append(TypicalLogitsWarper(typical_p))
    no_ids: Any = torch.zeros((40, 0), dtype=torch.long)
    expected = torch.softmax(warpers(no_ids, torch.from_numpy(logits)), -1).numpy()
    rows = sampling_rows(40, typical_p=typical_p, **others)
    scores = PROCESS(jnp.asarray(logits)[:, None], jnp.zeros((40, 1), jnp.int32), rows)[:, 0]
    found = np.asarray(jax.nn.softmax(scores, axis=-1))
    # Float32 sums of thousands may reach the mass some tokens of little mass earlier or later.
    at_cut = (found > 0) != (expected > 0)
    mass = np.where(at_cut, found + expected, 0.0).sum(-1)
    assert np.all(mass < 1e-5)
    np.testing.assert_allclose(
        found[~at_cut], expected[~at_cut], rtol=1e-4 if at_cut.any() else 2e-5
    )
