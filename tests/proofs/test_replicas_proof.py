"""Replicas that share experts give one device's answers, whatever the traffic; in exact mode the
same bits wherever a request runs."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from driving import sizes
from engine_proof import Proof
from jax import Array, lax
from setups import pair_on_replicas
from traffic import drive_waves, random_requests
from wide_pair import wide_target

from eagle3_jax.collectives import Axis, own_rows_sum
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import moe

PER_CASE, PER_CASE_LONG = 16, 500
CASES: dict[str, tuple[tuple[int, int, str], dict[str, Any]]] = {
    "2, latent draft": ((2, 1, "latent"), {}),
    "2, latent draft, exact": ((2, 1, "latent"), {"exact": True}),
    "4, grouped draft": ((4, 1, "grouped"), {}),
    "4, grouped draft, exact": ((4, 1, "grouped"), {"exact": True}),
    "2 of 2 devices, grouped draft": ((2, 2, "grouped"), {}),
    "2 of 2 devices, latent draft, exact": ((2, 2, "latent"), {"exact": True}),
}
SHORT = "2, latent draft, exact"


def config_of(replicas: int, **changes: Any) -> EngineConfig:
    """Eight slots, and pages for little more than one full sequence a replica."""
    slots = 8 // replicas
    few = {"max_num_seqs": slots, "batch_buckets": (slots,), "num_pages": 18}
    return sizes(3, data_parallel_size=replicas, **few, **changes)


@dataclass(frozen=True)
class ReplicasProof(Proof):
    """target: on one device, where plain answers come from, but in exact mode, where they come from
    the replicas, one request after the other; lies: how many replicas of how many devices, and the
    draft."""

    lies: tuple[int, int, str]

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        target, draft = pair_on_replicas(*self.lies)
        return self.engine_of(target, draft if speculative else None, config)


@pytest.mark.parametrize("name", CASES)
def test_replicas_change_no_answer(name: str, long: bool) -> None:
    if name != SHORT and not long:
        pytest.skip("part of the long form")
    lies, changes = CASES[name]
    requests = random_requests(np.random.default_rng(1), PER_CASE_LONG if long else PER_CASE)
    ReplicasProof(wide_target(), None, lies).check(config_of(lies[0], **changes), requests)


def sums_of_a_neighbour(x: Array, axis: Axis) -> Array:
    """Every replica gets the next one's rows."""
    assert axis is not None, "replicas have an axis"
    neighbours = jnp.roll(x, x.shape[0] // lax.axis_size(axis), axis=0)
    return own_rows_sum(neighbours, axis)


def test_the_proof_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    proof, config = ReplicasProof(wide_target(), None, (2, 1, "latent")), config_of(2)
    requests = random_requests(np.random.default_rng(1), 6)
    expected = proof.plain(requests, config)
    monkeypatch.setattr(moe, "own_rows_sum", sums_of_a_neighbour)
    compile_rounds_anew(monkeypatch, executor)
    run = drive_waves(proof.engine(config, speculative=True), requests, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, run, expected, proof.scorer(config))
