"""Devices that share KV heads, and neighbours that divide their contexts, change no answer.

Plain answers come from one device; in exact mode, whose promise is about speculation, from engines
whose devices share and divide alike.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_programs import compile_rounds_anew
from engine_proof import Proof
from test_divided_contexts import FLOAT8, divided, position_off_by_one
from test_stale_rows import check_poison
from traffic import drive_waves, random_requests
from wide_pair import DRAFTS, minimax_of_two_kv_heads, wide_target

from eagle3_jax.collectives import Axis
from eagle3_jax.engine import Engine, EngineConfig
from eagle3_jax.engine.programs import executor
from eagle3_jax.layers import gqa, split_context
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels.mla_share.layout import MASS

PER_CASE, PER_CASE_LONG = 16, 500
MakeTarget = Callable[[], Target]


def on_devices(make: MakeTarget, devices: int, *, by_expert: bool) -> tuple[Target, Eagle3Draft]:
    """With a draft of two KV heads."""
    target = make()
    draft = DRAFTS["of two KV heads"](target)
    mesh = make_mesh(devices, enable_expert_parallel=by_expert)
    shard(target, mesh)
    shard(draft, mesh)
    return target, draft


@dataclass(frozen=True)
class SharedProof(Proof):
    """target: on one device, where plain answers come from; make: the target under proof."""

    make: MakeTarget
    devices: int
    by_expert: bool

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        target, draft = on_devices(self.make, self.devices, by_expert=self.by_expert)
        return self.engine_of(target, draft if speculative else None, config)


def proof_of(devices: int, *, by_expert: bool = False, make: Any = None) -> SharedProof:
    make = make or minimax_of_two_kv_heads
    return SharedProof(make(), None, make, devices, by_expert)


CASES: dict[str, tuple[dict[str, Any], EngineConfig]] = {
    "4 devices, whole contexts": ({"devices": 4}, divided(1)),
    "4 devices, whole contexts, exact": ({"devices": 4}, divided(1, exact=True)),
    "4 devices, 2 parts, exact": ({"devices": 4}, divided(2, exact=True)),
    "4 devices by experts, 2 parts": ({"devices": 4, "by_expert": True}, divided(2)),
    "8 devices, whole contexts": ({"devices": 8}, divided(1)),
    "8 devices, 2 parts, float8, exact": ({"devices": 8}, divided(2, exact=True, **FLOAT8)),
    "4 devices, 2 parts, float8": ({"devices": 4}, divided(2, **FLOAT8)),
    "8 devices, 4 parts": ({"devices": 8}, divided(4)),
    "8 devices, 4 parts, float8": ({"devices": 8}, divided(4, **FLOAT8)),
    "8 devices, 4 parts, exact": ({"devices": 8}, divided(4, exact=True)),
    "4 parts of latents, 2 of the draft": ({"devices": 4, "make": wide_target}, divided(4)),
}
SHORT = "4 devices, 2 parts, exact"


@pytest.mark.parametrize("name", CASES)
def test_shared_kv_heads_change_no_answer(name: str, long: bool) -> None:
    if name != SHORT and not long:
        pytest.skip("part of the long form")
    options, config = CASES[name]
    requests = random_requests(np.random.default_rng(1), PER_CASE_LONG if long else PER_CASE)
    proof_of(**options).check(config, requests)


@pytest.mark.parametrize("parts", [1, 2])
def test_no_row_is_read_that_its_device_should_not_see(
    parts: int, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NaN in every row past the committed ones, in the parts of all devices."""
    if not long:
        pytest.skip("part of the long form")
    pair = on_devices(minimax_of_two_kv_heads, 4, by_expert=False)
    check_poison(monkeypatch, *pair, 100, divided(parts))


def first_head(units: int, axis: Axis) -> int:
    """Every device takes the first KV head."""
    return 0


def joined_without_weights(shares: jax.Array) -> jax.Array:
    """The plain mean of the devices' means."""
    return jnp.mean(shares[..., :-MASS], axis=0)


@pytest.mark.parametrize(
    ("module", "name", "wrong"),
    [
        (gqa, "own_unit", first_head),
        (gqa, "own_part", position_off_by_one),
        (split_context, "join_shares", joined_without_weights),
    ],
    ids=["head", "position", "weights"],
)
def test_the_proof_notices(
    module: Any, name: str, wrong: object, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not long:
        pytest.skip("part of the long form")
    proof, config = proof_of(4), divided(2)
    requests = random_requests(np.random.default_rng(1), 6)
    expected = proof.plain(requests, config)
    monkeypatch.setattr(module, name, wrong)
    compile_rounds_anew(monkeypatch, executor)
    run = drive_waves(proof.engine(config, speculative=True), requests, np.random.default_rng(0))
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, run, expected)
