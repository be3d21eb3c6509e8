"""A world: a model pair with one setting of the engine, and its plain answers as reference."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from driving import Answer, drive
from engine_proof import ALONE, EOS, LONGEST, differences
from float8_scores import Float8Scorer
from jax import Array
from toy_tokenizer import ToyTokenizer
from traffic import Run, random_requests

from eagle3_jax import encode_images
from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_tools.bench.equality.ties import Scorer

COLD = replace(ALONE, enable_prefix_caching=False)
"""Plain decoding of one sequence at a time, without prefix hits."""
PER_WORLD = 24
TOKENIZER = ToyTokenizer()


class Models(NamedTuple):
    """The models of an engine."""

    target: Target
    draft: Eagle3Draft | None
    vision: VisionModel | None = None


@dataclass(frozen=True)
class World:
    """One setting of the engine, and its traffic.

    Attributes:
        models: Builds the models on the devices of the engine under test.
        alone: Builds the target, and its vision, on one device, for plain answers.
        requests: Makes random requests from a generator and a count.
        tokenizer, eos: Tokenizer and EOS ids of the engine.
        program: The xdist group, equal for worlds that share compiled programs.
        prepare: Called with the engine before each pass of traffic.
        optimised: Compile as for users, because bits are compared.
        repeats: Equal traffic on an empty cache runs the same programs again. This is false with
            threads that fill masks or copy pages.
        long: Run with `--long` only.
        count, long_count: Number of requests without and with `--long`.
    """

    name: str
    models: Callable[[], Models]
    alone: Callable[[], Models]
    config: EngineConfig
    requests: Callable[[np.random.Generator, int], list[Request]] = random_requests
    tokenizer: Any = TOKENIZER
    eos: tuple[int, ...] = EOS
    program: str = "tiny"
    prepare: Callable[[Engine], None] = lambda engine: None
    optimised: bool = False
    repeats: bool = True
    long: bool = False
    count: int = PER_WORLD
    long_count: int = 500

    def engine(self, events: KVEventLog | None = None) -> Engine:
        """Return the engine under test."""
        return self._engine_of(self.models(), self.config, events)

    def scorer(self) -> Scorer:
        """Return the scorer that judges ties, with a cache of the engine's dtype."""
        target = self.alone().target
        if self.config.kv_cache_dtype != "fp8":
            return Scorer(target, LONGEST, self.eos)
        assert isinstance(self.config.kv_cache_scale, float), "one factor for all pools"
        return Float8Scorer(target, LONGEST, self.eos, scale=self.config.kv_cache_scale)

    def plain(self, requests: Sequence[Request]) -> dict[str, Answer]:
        """Return the answer to each request alone, without drafts.

        In exact mode it comes from the programs of the engine under test.
        """
        if self.config.exact:
            cold = replace(
                self.config,
                num_speculative_tokens=self.config.width - 1,
                num_lookup_tokens=0,
                enable_prefix_caching=False,
                kv_offloading_bytes=0,
            )
            engine = self._engine_of(self.models()._replace(draft=None), cold)
        else:
            stored = {n: getattr(self.config, n) for n in ("kv_cache_dtype", "kv_cache_scale")}
            engine = self._engine_of(self.alone(), replace(COLD, **stored))
        answers: dict[str, Answer] = {}
        for request in requests:
            # With logprobs all kinds of requests need two programs instead of four.
            sampling = replace(request.sampling, num_speculative_tokens=None, logprobs=0)
            answers |= drive(engine, [replace(request, sampling=sampling)])
        assert engine.stats().num_draft_tokens == engine.stats().num_preemptions == 0
        return answers

    def differences(
        self, requests: Sequence[Request], run: Run, plain: Mapping[str, Answer]
    ) -> list[str]:
        """Return a line for each answer that differs by a tie; other differences fail at once."""
        return differences(requests, run, plain, self.scorer(), self.features)

    def features(self, request: Request) -> Sequence[Array]:
        """Return the features of the request's images."""
        vision = self.alone().vision
        return encode_images(vision, [p.item for p in request.images]) if vision else ()

    def _engine_of(
        self, models: Models, config: EngineConfig, events: KVEventLog | None = None
    ) -> Engine:
        clock = iter(range(10**9)).__next__ if config.adaptive else None
        return Engine(
            models.target,
            models.draft,
            config,
            tokenizer=self.tokenizer,
            eos_token_ids=self.eos,
            vision=models.vision,
            kv_events=events,
            clock=clock,
        )
