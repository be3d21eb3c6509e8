"""Proof (e): in exact mode a request's bits do not depend on where it is, or beside whom."""

from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from driving import sizes
from lab import Lab, one_row
from tiny import VOCAB

from eagle3_jax.layers import moe
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.bench.common import engine_programs

pytestmark = pytest.mark.optimised

K, ROUNDS = 3, 4
PROMPTS = [[(13 * i + 5 * j * j + 2) % VOCAB for j in range(3 + 2 * i)] for i in range(4)]
OTHERS = [[(29 * i + 3 * j + 7) % VOCAB for j in range(9 - 2 * i)] for i in range(4)]
OPTIONS = [one_row(), one_row(0.6, seed=1), one_row(1.0, seed=2), one_row(1.3, seed=3)]
ORDERS = list(permutations(range(4)))
Bits = dict[str, np.ndarray]


@dataclass(frozen=True)
class Pair:
    """The models of a test."""

    target: Target
    draft: Eagle3Draft

    def lab(self) -> Lab:
        return Lab(self.target, self.draft, sizes(K, exact=True))


@pytest.fixture
def pair(target: Target, draft: Eagle3Draft) -> Pair:
    return Pair(target, draft)


def bits_of(lab: Lab, slot: int, reports: list[np.ndarray]) -> Bits:
    """Everything a sequence has left on the device, and what was reported of it."""
    slots = lab.snapshot().slots
    length, accepted = int(slots.seq_lens[slot]), int(slots.num_accepted[slot])
    return {
        "reports": np.stack(reports),
        "target KV": lab.target_rows(slot, length).view(np.uint32),
        "draft KV": lab.draft_rows(slot, length - accepted - 1).view(np.uint32),
        "features": np.asarray(slots.aux_hidden[slot, : accepted + 1]).view(np.uint32),
    }


def run(lab: Lab, slot_of: tuple[int, ...], orders: list[tuple[int, ...]]) -> list[Bits]:
    """Prompt i in slot_of[i]; each round takes the slots in another order."""
    for prompt, options, slot in zip(PROMPTS, OPTIONS, slot_of, strict=True):
        lab.prefill(slot, prompt, options)
    reports: list[list[np.ndarray]] = [[], [], [], []]
    for order in orders:
        for slot, report in zip(order, lab.round(order), strict=True):
            reports[slot].append(report)
    return [bits_of(lab, slot, reports[slot]) for slot in slot_of]


def assert_equal_bits(found: Bits, expected: Bits) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def check_permutations(pair: Pair, orders: list[tuple[int, ...]]) -> None:
    """Slots, pages, rows of the batch and order of arrival: bits stay."""
    expected = run(pair.lab(), (0, 1, 2, 3), [(0, 1, 2, 3)] * ROUNDS)
    assert any(bits["reports"][:, K + 1].max() > 1 for bits in expected), "nothing was accepted"
    for i, slot_of in enumerate(orders):
        rows = [ORDERS[(5 * i + 7 * round_) % len(ORDERS)] for round_ in range(ROUNDS)]
        for found, bits in zip(run(pair.lab(), slot_of, rows), expected, strict=True):
            assert_equal_bits(found, bits)


def with_neighbours(pair: Pair, kind: str) -> Bits:
    """Return prompt 1's rows in slot 1 beside neighbours of a kind."""
    lab = pair.lab()
    lab.prefill(1, PROMPTS[1], OPTIONS[1])
    others = [] if kind == "none" else [0, 2, 3]
    for slot in others:
        prompt = PROMPTS[slot] if kind == "usual" else OTHERS[slot]
        lab.prefill(slot, prompt, OPTIONS[slot if kind == "usual" else 3 - slot])
    if kind == "NaN":
        lab.edit(
            lambda state: replace(state, slots=replace(state.slots, aux_hidden=spoiled(state)))
        )
    reports = []
    for round_ in range(ROUNDS):
        row = round_ % (len(others) + 1)
        order = [*others[:row], 1, *others[row:]]
        reports.append(lab.round(order)[row])
    return bits_of(lab, 1, reports)


def spoiled(state: Any) -> jax.Array:
    """Features that are NaN in every slot but 1."""
    own = (jnp.arange(state.slots.aux_hidden.shape[0]) == 1)[:, None, None]
    return jnp.where(own, state.slots.aux_hidden, jnp.nan)


def test_permuted_batches_leave_every_bit_as_it_is(pair: Pair, long: bool) -> None:
    check_permutations(pair, ORDERS if long else [ORDERS[i] for i in (7, 16, 23)])


@pytest.mark.parametrize("kind", ["none", "other", "NaN"])
def test_neighbours_leave_every_bit_as_it_is(pair: Pair, kind: str) -> None:
    assert_equal_bits(with_neighbours(pair, kind), with_neighbours(pair, "usual"))


def test_the_proof_notices_rows_that_feel_their_neighbours(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts whose output has a little of the batch's first row in it."""
    exact = moe.moe_mlp

    def leaky(x: jax.Array, *weights: Any, **options: Any) -> jax.Array:
        return exact(x, *weights, **options) + 1e-5 * x[:1]

    monkeypatch.setattr(moe, "moe_mlp", leaky)
    compile_rounds_anew(monkeypatch, engine_programs)
    with pytest.raises(AssertionError, match="draft KV"):
        check_permutations(pair, [ORDERS[7]])
    with pytest.raises(AssertionError, match="draft KV"):
        assert_equal_bits(with_neighbours(pair, "other"), with_neighbours(pair, "usual"))
