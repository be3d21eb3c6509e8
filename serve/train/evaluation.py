"""Measure a draft's accept length in the engine, on held-out prompts."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from convert.text.tokenizer import Tokenizer
from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.mesh import mesh_of, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from serve.pair.generation_config import SamplingDefaults
from serve.pair.loading import LoadedPair, build_engine
from serve.train.answers import read_contents
from serve.train.data import open_records, prompts_of

BATCH = 8
TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class ServedAcceptance:
    """A measurement of one target's drafts on `prompts`, which are token ids.

    `drafts` is the number per round, `answer_tokens` the maximum of an answer.
    """

    target: Target
    tokenizer: Tokenizer
    prompts: Sequence[Sequence[int]]
    drafts: int
    answer_tokens: int
    prefill_chunk: int

    def measure(self, draft: Eagle3Draft) -> dict[str, float]:
        """Place the draft like its target; return tokens per round at temperature 0, 1 and mean."""
        if (mesh := mesh_of(self.target)) is not None:
            shard(draft, mesh)
        pair = LoadedPair(self.target, draft, self.tokenizer, SamplingDefaults())
        found = [self._accept_length(pair, temperature) for temperature in TEMPERATURES]
        at = {f"accept_length_t{t:.0f}": x for t, x in zip(TEMPERATURES, found, strict=True)}
        return {"accept_length": sum(found) / len(found), **at}

    def _accept_length(self, pair: LoadedPair, temperature: float) -> float:
        engine = build_engine(pair, self._config, clock=time.perf_counter)
        sampling = SamplingParams(temperature=temperature, max_tokens=self.answer_tokens)
        for number, prompt in enumerate(self.prompts):
            engine.add(Request(f"{number}", list(prompt), replace(sampling, seed=number)))
        while engine.has_work:
            engine.step()
        stats = engine.stats()
        return 1 + stats.num_accepted_tokens / max(stats.num_drafts, 1)

    @cached_property
    def _config(self) -> EngineConfig:
        return EngineConfig(
            num_speculative_tokens=self.drafts,
            max_model_len=max(map(len, self.prompts)) + self.answer_tokens,
            max_num_seqs=BATCH,
            batch_buckets=(BATCH,),
            prefill_chunk=self.prefill_chunk,
            enable_structured_outputs=False,
        )


def evaluation_prompts(tokenizer: Tokenizer, data: str, split: str, count: int) -> list[list[int]]:
    """Return `count` prompts of a file or data set."""
    found = prompts_of(open_records(data, split), count, _check_text_alone)
    if not found:
        raise ValueError(f"--eval-data {data}: no conversation has an answer")
    return [tokenizer.encode_chat(list(m), tools=list(t) or None) for m, t in found]


def _check_text_alone(messages: Sequence[Any]) -> None:
    _, sources = read_contents(messages)
    if any(sources):
        raise ValueError("an image; drafts are judged on prompts of text alone, so leave it out")
