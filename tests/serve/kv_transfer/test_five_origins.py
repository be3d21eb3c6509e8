"""A prompt's pages may lie on the devices, in the host's memory, on a disk, with a producer or
nowhere: the answer, what its drafts are worth and the bits of its pages are the same."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from driving import Answer, drive, sizes
from test_prefill_apart import ROOM, Ends, produced, request, went_on
from tiny import VOCAB, latent_draft, tiny_draft, tiny_target

from eagle3_jax.engine import Engine
from eagle3_jax.engine.kv.prefix_cache import prompt_page_keys
from eagle3_jax.engine.page_tiers import TokensByTier
from eagle3_jax.sampling.params import SamplingParams
from serve.kv_transfer.config import KVTransferConfig
from serve.kv_transfer.transfers import Transfers

ORIGINS = ("none", "device", "host", "disk", "remote")
OTHERS = [
    replace(
        request(f"other {i}", tokens=12),
        prompt_ids=[(i * j + 11 * j * j) % VOCAB for j in range(40)],
    )
    for i in range(2, 8)
]
"""So many that nothing else is left on the devices."""


@dataclass(frozen=True)
class Found:
    """An answer, and the bytes of the prompt's pages: in the pools behind it, pool by pool, and in
    the host's memory, where they came through it."""

    answer: Answer
    in_pools: list[list[np.ndarray]]
    in_host: list[np.ndarray]

    @property
    def cached(self) -> TokensByTier:
        return self.answer.outputs[-1].cached


@dataclass(frozen=True)
class Setup:
    """Engines of one pair that are asked the same prompt, in exact mode with log-probabilities."""

    draft: Callable[..., Any]
    exact: bool
    directory: Path

    @contextmanager
    def engine(self, *, on_disk: bool = False) -> Iterator[Ends]:
        target = tiny_target()
        kept: dict[str, Any] = {"kv_offloading_bytes": ROOM, "exact": self.exact}
        if on_disk:
            kept |= {"kv_offloading_dir": str(self.directory), "kv_offloading_dir_bytes": ROOM}
        engine = Engine(target, self.draft(target), sizes(3, **kept))
        yield engine, Transfers(engine, KVTransferConfig("both", port=0))
        engine.close()

    def found(self, ends: Ends, params: dict[str, Any] | None = None) -> Found:
        """Ask this engine the prompt alone."""
        engine, _ = ends
        own = request("d")
        if self.exact:
            own = replace(own, sampling=SamplingParams(logprobs=2, max_tokens=20, seed=3))
        answer = went_on(ends, params, own) if params else drive(engine, [own])["d"]
        keys = prompt_page_keys(engine.config, own)
        scheduler, state = engine._replicas.first, engine._runner.executor.state
        pages = [scheduler.pages._page_of[key] for key in keys]
        leaves = jax.tree.leaves((state.target_pools, state.draft_pools))
        pools = [np.asarray(pool).view(np.uint8) for pool in leaves if pool.ndim > 1]
        assert scheduler.tier is not None
        slots = [scheduler.tier._slot_of[key] for key in keys if scheduler.tier.knows(key)]
        in_host = [engine.host_pages.bytes_of(slot).copy() for slot in slots]
        return Found(answer, [[pool[page].copy() for pool in pools] for page in pages], in_host)


PAIRS = {
    "MHA": (tiny_draft, False),
    "MLA, exact": (latent_draft, True),
    "MHA, exact": (tiny_draft, True),
    "MLA": (latent_draft, False),
}
LONG = [pytest.param(name, marks=pytest.mark.long) for name in PAIRS if name != "MLA, exact"]


@pytest.fixture(params=["MLA, exact", *LONG], scope="module")
def found(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Found]:
    """By origin; engines end before others take their directory over. With --long of all pairs."""
    setup = Setup(*PAIRS[request.param], tmp_path_factory.mktemp("pages"))
    with setup.engine(on_disk=True) as first:
        here = {"none": setup.found(first), "device": setup.found(first)}
        drive(first[0], OTHERS)
        here["host"] = setup.found(first)
    with setup.engine(on_disk=True) as second:
        here["disk"] = setup.found(second)
    with setup.engine() as producer, setup.engine() as consumer:
        here["remote"] = setup.found(consumer, produced(producer))
    return here


def test_each_prompt_was_where_it_was_to_be(found: dict[str, Found]) -> None:
    whole = len(found["none"].in_pools) * 4
    assert whole in (32, 36)
    places = {"none": {}, **{origin: {origin: whole} for origin in ORIGINS[1:]}}
    assert {o: f.cached for o, f in found.items()} == {
        origin: TokensByTier(**tokens) for origin, tokens in places.items()
    }


def test_tokens_and_accepted_drafts_are_the_same_from_everywhere(found: dict[str, Found]) -> None:
    """Every round is compared."""
    told = [(f.answer.token_ids, f.answer.accepted, f.answer.origins) for f in found.values()]
    assert told == [told[0]] * len(ORIGINS)
    assert len(told[0][0]) == 20 and len(told[0][1]) > 4


def test_log_probabilities_are_bit_equal_in_exact_mode(found: dict[str, Found]) -> None:
    told = [[o.logprobs for o in f.answer.outputs] for f in found.values()]
    assert told == [told[0]] * len(ORIGINS)


def test_pages_have_the_same_bits_behind_the_disk_and_the_wire(found: dict[str, Found]) -> None:
    """Target and draft, in every pool and in the host's memory."""
    first = found["none"].in_pools
    assert all(len(pools) > 2 for pools in first)
    for origin in ORIGINS:
        for one, other in zip(first, found[origin].in_pools, strict=True):
            assert all(map(np.array_equal, one, other)), origin
    for origin in ("disk", "remote"):
        assert len(found[origin].in_host) == len(first)
        assert all(map(np.array_equal, found["host"].in_host, found[origin].in_host)), origin
