"""Proof (c) with images: random traffic that shows pictures gets the tokens of plain decoding.

Plain answers come from one device and each request alone. The engine under proof batches, cuts
prompts within images, finds prefixes that end within them, and preempts.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import pytest
from driving import drive, sizes
from engine_proof import ALONE, EOS, Proof
from jax import Array
from tiny import TARGET, VOCAB, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn, image, tiny_vision, with_images
from toy_tokenizer import ToyTokenizer
from traffic import Run, random_options

from eagle3_jax import encode_images
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.kv import prefix_cache
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.sampling.params import SamplingParams

SHOWN = [image(1, 8, 6), image(2, 8, 6), image(3, 2, 2), image(4, 4, 6), image(5, 2, 16)]
"""Of 12, 12, 1, 6 and 8 tokens."""
CASES = {
    "k=3": (1, sizes(3)),
    "draft sees, 2 devices": (2, sizes(3, mm_draft_embedding="target")),
    "2 devices": (2, sizes(3, mm_encoder_cache_tokens=12)),
    "exact": (1, sizes(3, exact=True)),
    "exact, 2 devices": (2, sizes(3, exact=True)),
    "tree": (1, sizes(3, eagle_topk=3, num_draft_tokens=9)),
    "tree, draft sees, 2 devices": (
        2,
        sizes(3, eagle_topk=3, num_draft_tokens=9, mm_draft_embedding="target"),
    ),
}
SHORT = "draft sees, 2 devices"
PER_CASE, PER_CASE_LONG = 16, 200
STEM = [5, 9, 2, 7, 11, 3, 8, 1]


@dataclass(frozen=True)
class SeeingProof(Proof):
    """The tiny pair with eyes; on so many devices, which divide the images of a call, too."""

    devices: int

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        return self._engine(config, self.devices, speculative)

    def alone(self, config: EngineConfig) -> Engine:
        return self._engine(ALONE, 1, False)

    def _engine(self, config: EngineConfig, devices: int, speculative: bool) -> Engine:
        target, vision = seeing_target(), drawn(VISION)
        draft = tiny_draft(target)
        if devices > 1:
            mesh = make_mesh(devices, devices=jax.devices()[:devices])
            for model in (target, draft, vision):
                shard(model, mesh)
        return Engine(
            target,
            draft if speculative else None,
            config,
            tokenizer=ToyTokenizer(),
            eos_token_ids=EOS,
            vision=vision,
        )

    def features(self, request: Request) -> list[Array]:
        return encode_images(tiny_vision(), [placed.item for placed in request.images])


def seeing_target() -> Any:
    return tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))


def image_requests(rng: np.random.Generator, count: int) -> list[Request]:
    """Prompts of one or two images that often begin alike, some of text alone; 1 to 40 tokens.

    A placeholder ends an answer, so that the images' are the only ones in what is scored again.
    """
    common = rng.integers(0, VOCAB - 1, 8).tolist()

    def prompt() -> list[Any]:
        parts: list[Any] = [common[: rng.integers(0, 9)]]
        for _ in range(rng.choice([0, 1, 1, 1, 2])):
            parts += [SHOWN[rng.integers(len(SHOWN))], words(0, 2)]
        return [*parts, words(1, 3)]

    def words(least: int, most: int) -> list[int]:
        return rng.integers(0, VOCAB - 1, rng.integers(least, most + 1)).tolist()

    def options() -> Any:
        drawn_options = random_options(rng)
        stops = [*drawn_options.stop_token_ids, PAD]
        return replace(drawn_options, stop_token_ids=stops)

    return [with_images(str(i), prompt(), options()) for i in range(count)]


@dataclass
class Cuts:
    """Where chunks began within images, in tokens from an image's start."""

    places: set[int]

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bring = Scheduler.bring_images

        def noted(scheduler: Scheduler, chunk: ChunkPlan) -> ChunkPlan:
            for placed in chunk.sequence.request.images:
                if placed.item.num_tokens == 12 and placed.start < chunk.start < placed.end:
                    self.places.add(chunk.start - placed.start)
            return bring(scheduler, chunk)

        monkeypatch.setattr(Scheduler, "bring_images", noted)


@pytest.mark.parametrize("case", CASES)
def test_speculation_changes_no_answer_about_images(
    case: str, long: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preemptions, cancelled requests and prefixes are asserted by `check`."""
    if case != SHORT and not long:
        pytest.skip("part of the long form")
    devices, config = CASES[case]
    requests = image_requests(np.random.default_rng(1), PER_CASE_LONG if long else PER_CASE)
    cuts = Cuts(set())
    cuts.watch(monkeypatch)
    SeeingProof(seeing_target(), None, devices).check(config, requests)
    assert cuts.places, "no image was cut"
    if long and not config.exact:
        assert cuts.places == set(range(1, 12)), "not cut everywhere"


def test_the_proof_notices_pages_that_other_images_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts alike but for their images, of one grid, one after the other."""
    sampling = SamplingParams(max_tokens=16, stop_token_ids=[PAD], ignore_eos=True)
    requests = [
        with_images(f"{i}", [STEM, SHOWN[i % 2], [9]], replace(sampling, seed=i)) for i in range(8)
    ]
    proof, config = SeeingProof(seeing_target(), None, 1), sizes(0)
    expected = proof.plain(requests, config)
    monkeypatch.setattr(prefix_cache, "images_in", lambda *_: ())
    answers = drive(proof.engine(config, speculative=False), requests, arrival_gap=4)
    with pytest.raises(AssertionError, match="not a tie"):
        proof.differences(requests, Run(answers, set()), expected, proof.scorer(config))
