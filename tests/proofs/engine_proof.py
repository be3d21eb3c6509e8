"""An engine under proof: random traffic with speculation on against plain answers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from driving import Answer, drive, sizes
from float8_scores import Float8Scorer
from jax import Array
from toy_tokenizer import ToyTokenizer
from traffic import Run, drive_waves

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from serve.bench.equality.ties import Scorer, describe
from serve.bench.studies.equal import REQUESTS_PER_TIE

EOS, LONGEST = (5, 40), 64
ALONE = sizes(0, max_num_seqs=1, num_pages=None, batch_buckets=(1,))
"""Plain decoding of one sequence at a time."""


@dataclass(frozen=True)
class Proof:
    """The pair under proof, and its engines."""

    target: Target
    draft: Eagle3Draft | None

    def engine(self, config: EngineConfig, *, speculative: bool) -> Engine:
        """The one under proof."""
        return self.engine_of(self.target, self.draft if speculative else None, config)

    def alone(self, config: EngineConfig) -> Engine:
        """What it is compared with: the target's own, whose cache has config's dtype."""
        stored = {name: getattr(config, name) for name in ("kv_cache_dtype", "kv_cache_scale")}
        return self.engine_of(self.target, None, replace(ALONE, **stored))

    def scorer(self, config: EngineConfig) -> Scorer:
        """What judges ties of answers from caches of config's dtype."""
        if config.kv_cache_dtype != "fp8":
            return Scorer(self.target, LONGEST, EOS)
        assert isinstance(config.kv_cache_scale, float), "one factor for all pools"
        return Float8Scorer(self.target, LONGEST, EOS, scale=config.kv_cache_scale)

    def engine_of(self, target: Target, draft: Eagle3Draft | None, config: EngineConfig) -> Engine:
        return Engine(target, draft, config, tokenizer=ToyTokenizer(), eos_token_ids=EOS)

    def plain(self, requests: list[Request], config: EngineConfig) -> dict[str, Answer]:
        """Each alone and without speculation; in exact mode through the same programs."""
        engine = self.engine(config, speculative=False) if config.exact else self.alone(config)
        answers: dict[str, Answer] = {}
        for request in requests:
            sampling = replace(request.sampling, num_speculative_tokens=None)
            answers |= drive(engine, [replace(request, sampling=sampling)])
        assert engine.stats().num_draft_tokens == 0
        return answers

    def features(self, request: Request) -> Sequence[Array]:
        """Of its images."""
        return ()

    def check(self, config: EngineConfig, requests: list[Request]) -> None:
        """Speculative answers are the plain ones; the traffic was as wild as it should be."""
        expected = self.plain(requests, config)
        engine = self.engine(config, speculative=True)
        run = drive_waves(engine, requests, np.random.default_rng(len(requests)))
        differences = self.differences(requests, run, expected, self.scorer(config))
        allowed = 0 if config.exact else math.ceil(len(requests) / REQUESTS_PER_TIE)
        assert len(differences) <= allowed, differences
        stats = engine.stats()
        assert stats.free_pages == stats.total_pages
        assert run.cancelled and stats.num_preemptions, "nothing was cancelled or preempted"
        assert stats.prefix_cache_hits, "no prompt began like another"
        assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens
        print(
            f"{len(requests)} requests, {len(differences)} ties, {len(run.cancelled)} cancelled, "
            f"{stats.num_preemptions} preemptions, {stats.prefix_cache_hits} prompt tokens found, "
            f"{stats.num_accepted_tokens} of {stats.num_draft_tokens} drafts accepted"
        )

    def differences(
        self,
        requests: list[Request],
        run: Run,
        expected: dict[str, Answer],
        scorer: Scorer | None = None,
    ) -> list[str]:
        """See `differences`."""
        scorer = scorer or Scorer(self.target, LONGEST, EOS)
        return differences(requests, run, expected, scorer, self.features)


def differences(
    requests: Sequence[Request],
    run: Run,
    expected: Mapping[str, Answer],
    scorer: Scorer,
    features: Callable[[Request], Sequence[Array]],
) -> list[str]:
    """A line for each answer that differs by a tie; other differences fail at once. Of a cancelled
    request, as far as it came."""
    lines: list[str] = []
    for request in requests:
        name = request.request_id
        found, plain = run.answers[name], expected[name]
        ours, theirs = found.token_ids, plain.token_ids
        if name in run.cancelled:
            shared = min(len(ours), len(theirs))
            ours, theirs = ours[:shared], theirs[:shared]
        elif ours == theirs:
            assert (found.text, found.finish) == (plain.text, plain.finish), name
        shown = () if ours == theirs else features(request)
        tie = scorer.explain(name, request.prompt_ids, request.sampling, ours, theirs, shown)
        if tie:
            assert tie.cause, f"{describe(tie)}; {request}"
            lines.append(describe(tie))
    return lines
