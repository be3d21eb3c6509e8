"""Neighbours that divide contexts give one device's answers, whatever the traffic.

Plain answers come from one device; in exact mode, whose promise is about speculation, from engines
that divide contexts alike.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from driving import sizes
from engine_proof import Proof
from setups import Setup, pair_on_devices
from test_stale_rows import check_poison
from traffic import drive_waves, random_requests
from wide_pair import wide_target

from eagle3_jax.cache import KVPool, PageView
from eagle3_jax.collectives import Axis
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import mla, split_context

PER_CASE, PER_CASE_LONG = 16, 500


def divided(parts: int, **changes: Any) -> EngineConfig:
    """Pages of 4 tokens, for little more than one full sequence of the four slots."""
    shared = {"page_size": 4 // parts, "num_pages": 20, "decode_context_parallel_size": parts}
    return sizes(3, **(shared | changes))


FLOAT8 = {"kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}
CASES = {
    "1 of 4, latent draft": (Setup(4, False, "latent", "float32", True), divided(1)),
    "1 of 4, latent draft, exact": (
        Setup(4, False, "latent", "float32", True),
        divided(1, exact=True),
    ),
    "2 of 4, grouped draft": (Setup(4, False, "grouped", "float32", True), divided(2)),
    "4 of 4, latent draft, exact": (
        Setup(4, False, "latent", "float32", True),
        divided(4, exact=True),
    ),
    "4 of 4, grouped draft": (Setup(4, False, "grouped", "float32", True), divided(4)),
    "2 of 2, latent draft": (Setup(2, False, "latent", "float32", True), divided(2)),
    "2 of 2, grouped draft, exact": (
        Setup(2, False, "grouped", "float32", True),
        divided(2, exact=True),
    ),
    "4 of 8 by experts, whole latent draft": (
        Setup(8, True, "latent", "float32", False),
        divided(4),
    ),
    "2 of 4, latent draft, float8, exact": (
        Setup(4, True, "latent", "float32", True),
        divided(2, exact=True, **FLOAT8),
    ),
    "2 of 2, latent draft, float8": (
        Setup(2, False, "latent", "float32", True),
        divided(2, **FLOAT8),
    ),
    "4 of 4, grouped draft, float8": (
        Setup(4, False, "grouped", "float32", True),
        divided(4, **FLOAT8),
    ),
}
SHORT = "4 of 4, latent draft, exact"


@dataclass(frozen=True)
class DividedProof(Proof):
    """target: on one device, where plain answers come from; setup: of the pair under proof."""

    setup: Setup

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        target, draft = pair_on_devices(self.setup)
        return self.engine_of(target, draft if speculative else None, config)


@pytest.fixture
def in_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefills gather latents as for prompts of 16K tokens and more: 8 slots at a time."""
    monkeypatch.setattr(mla, "EXPANDED_ROWS", 8)
    monkeypatch.setattr(split_context, "GATHERED_SLOTS", 8)
    compile_rounds_anew(monkeypatch, executor, prefills=True)


@pytest.mark.parametrize("name", CASES)
def test_divided_contexts_change_no_answer(name: str, long: bool) -> None:
    if name != SHORT and not long:
        pytest.skip("part of the long form")
    setup, config = CASES[name]
    requests = random_requests(np.random.default_rng(1), PER_CASE_LONG if long else PER_CASE)
    DividedProof(wide_target(), None, setup).check(config, requests)


@pytest.mark.usefixtures("in_many_chunks")
@pytest.mark.parametrize("parts", [2, 4])
def test_gathering_a_prompt_in_chunks_changes_no_answer(parts: int, long: bool) -> None:
    if not long:
        pytest.skip("part of the long form")
    setup = Setup(4, False, "latent", "float32", True)
    requests = random_requests(np.random.default_rng(1), PER_CASE_LONG)
    DividedProof(wide_target(), None, setup).check(divided(parts), requests)


@pytest.mark.parametrize("parts", [2, 4])
def test_no_row_is_read_that_its_device_should_not_see(
    parts: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in every row past the committed ones, in the parts of all devices."""
    if not long:
        pytest.skip("part of the long form")
    pair = pair_on_devices(Setup(4, False, "latent", "float32", True))
    check_poison(monkeypatch, *pair, 100, divided(parts))


def position_off_by_one(pages: PageView, pool: KVPool, axis: Axis) -> PageView:
    """Every device but the first sees one slot less than it should, or scratch."""
    own = split_context.own_part(pages, pool, axis)
    if axis is None:  # whoever judges: it has whole contexts
        return own
    first = jax.lax.axis_index(axis) == 0
    return replace(own, positions=jnp.where(first, own.positions, own.positions - 1))


def merged_without_weights(shares: jax.Array, value_kernel: jax.Array) -> jax.Array:
    """The plain mean of the devices' means."""
    mean = shares[..., : value_kernel.shape[1]].mean(0)
    return jnp.einsum("bqhc,hcd->bqhd", mean, value_kernel)


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (mla, "own_part", position_off_by_one),
        (split_context, "share_values", merged_without_weights),
    ],
    ids=["position", "weights"],
)
@pytest.mark.parametrize("stored", [{}, FLOAT8], ids=["float32", "float8"])
def test_the_proof_notices(
    module: Any,
    name: str,
    wrong: object,
    stored: dict[str, Any],
    long: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The short form's are in tests/eagle3_jax/sharded/test_split_context.py."""
    if not long:
        pytest.skip("part of the long form")
    config, setup = divided(2, **stored), Setup(2, False, "grouped", "float32", True)
    proof = DividedProof(wide_target(), None, setup)
    requests = random_requests(np.random.default_rng(1), 6)
    expected = proof.plain(requests, config)
    monkeypatch.setattr(module, name, wrong)
    compile_rounds_anew(monkeypatch, executor)
    run = drive_waves(proof.engine(config, speculative=True), requests, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, run, expected, proof.scorer(config))
