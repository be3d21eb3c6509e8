"""The engine's loop over requests: their answers, its speed, and what it launches."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.gpu.launched import Launched, launched_by
from serve.pair.loading import LoadedPair


@dataclass(frozen=True)
class ServingLoop:
    """answers: token ids of each request, in order. tokens_per_s: of all, once it is warm."""

    device: str
    answers: list[list[int]]
    tokens_per_s: float
    accept_length: float | None
    launched: Launched | None = None

    @property
    def holds(self) -> bool:
        """Whether it launches nothing but the engine's programs."""
        return self.launched is None or (self.launched.programs > 0 and not self.launched.foreign)


def serving_loop(
    pair: LoadedPair, config: EngineConfig, requests: Sequence[Request], *, traced: bool = True
) -> ServingLoop:
    """Answers the requests, and then twice more: timed, and traced."""
    engine = Engine(pair.target, pair.draft, config, eos_token_ids=pair.eos_token_ids)

    def answer(run: str) -> list[list[int]]:
        named = [replace(one, request_id=f"{run} {one.request_id}") for one in requests]
        answers = drive(engine, named)
        return [list(answers[one.request_id].token_ids) for one in named]

    answers = answer("first")
    start = time.perf_counter()
    tokens = sum(map(len, answer("timed")))
    seconds = time.perf_counter() - start
    launched = launched_by(lambda: answer("traced")) if traced else None
    device = str(next(iter(pair.target.embed_tokens.embedding.get_value().devices())).device_kind)
    return ServingLoop(device, answers, tokens / seconds, engine.stats().accept_length, launched)
