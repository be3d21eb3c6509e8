"""Offline generation: prompts in, text or JSON lines out, progress on standard error."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import (
    Acceptance,
    CollectedOutput,
    Engine,
    EngineConfig,
    Request,
    RequestOutput,
)
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.asgi.synthetic_header import synthetic_field
from serve.chat_format.reasoning import behind, end_of_open_reasoning
from serve.demo import find_pair
from serve.generate.flags import GenerateOptions
from serve.generate.progress import OfflineProgress
from serve.openai.answers.logprob_forms import TokenBytes, TokenTexts, logprobs_by_id
from serve.pair.bad_words import spell_bad_words
from serve.pair.loading import (
    LoadedPair,
    build_engine,
    fit_length,
    load_pair,
)
from serve.pair.program_cache import keep_compiled_programs


@dataclass
class Generated(CollectedOutput):
    """One growing answer; its text may begin with an echo of the prompt."""

    seed: int | None = None

    def take(self, output: RequestOutput) -> None:
        """Add an output."""
        super().take(output)
        self.seed = output.seed

    def as_json(self, tokenizer: TokenBytes, synthetic: dict[str, float]) -> str:
        """Return one line; accept lengths follow docs/metrics.md, null without a round.

        Requested logprobs are in the form of vLLM's prompt_logprobs. `synthetic` is the field that
        synthetic acceptance adds.
        """
        counts = Acceptance(Counter(self.rounds), num_speculative_tokens=0)
        fields = {
            "token_ids": self.token_ids,
            "text": self.text,
            "finish_reason": self.finish_reason,
            "rounds": len(self.rounds),
            "accepted": [r.accepted for r in self.rounds],
            "verified": [r.verified for r in self.rounds],
            "kept": [r.kept for r in self.rounds],
            "accept_length": counts.accept_length,
            "accept_length_eos_corrected": counts.accept_length_eos_corrected,
            "seed": self.seed,
        }
        asked = {"logprobs": self.logprobs, "prompt_logprobs": self.prompt_logprobs}
        texts = TokenTexts(tokenizer)
        told = {name: entries for name, entries in asked.items() if entries}
        fields |= {name: [*map(json.loads, logprobs_by_id(texts, told[name]))] for name in told}
        return json.dumps(fields | synthetic, ensure_ascii=False)


def run(options: GenerateOptions) -> int:
    """Generate and print in the order of the prompts; return 2 for unusable files and sizes."""
    console = Console(stderr=True)
    keep_compiled_programs()
    try:
        SamplingParams(**options.sampling)
        form = StructuredOutputs(**options.form) if options.form else None
        pair, prompts = _load(options)
        engine = build_engine(pair, pair.config, clock=time.monotonic)
        defaults: dict[str, Any] = {"max_tokens": None, **pair.defaults.options}
        words = spell_bad_words(pair.tokenizer, options.bad_words)
        sampling = SamplingParams(**{**defaults, **options.sampling, "bad_words_ids": words})
        for index, prompt in enumerate(prompts):
            outputs = behind(form, end_of_open_reasoning(prompt, pair.tokenizer))
            params = replace(sampling, structured_outputs=outputs)
            engine.add(Request(str(index), prompt, params))
        echoes = [pair.tokenizer.decode(prompt, skip_special=False) for prompt in prompts]
        answers = [Generated(texts=[echo] if options.echo else []) for echo in echoes]
    except (OSError, ValueError) as error:
        print(f"eagle3-generate: error: {error}", file=sys.stderr)
        return 2
    if synthetic := synthetic_field(engine.stats()):
        console.print("synthetic acceptance: answers are not the model's")
    with OfflineProgress(console, len(prompts)) as progress:
        engine.warmup(progress.on_compiled)
        for answer in _generate(engine, answers, progress):
            line = answer.as_json(pair.tokenizer, synthetic) if options.json else answer.text
            progress.put_out(line)
    return 0


def _load(options: GenerateOptions) -> tuple[LoadedPair, list[list[int]]]:
    """Return the pair, and the prompts as token ids."""
    prompts: list[list[int]] = []

    def configure(target: TargetConfig, tokenizer: Tokenizer) -> EngineConfig:
        for prompt in options.prompts:
            if options.raw:
                prompts.append(tokenizer.encode(prompt, add_special=True))
            else:
                prompts.append(tokenizer.encode_chat([{"role": "user", "content": prompt}]))
        return _engine_config(options, target, max(map(len, prompts)))

    found = find_pair(options)
    pair = load_pair(
        found.target,
        found.draft,
        options.load,
        options.parallel,
        tokenizer=found.tokenizer,
        configure=configure,
        memory=options.memory,
    )
    return pair, prompts


def _engine_config(
    options: GenerateOptions, target: TargetConfig, longest_prompt: int
) -> EngineConfig:
    needed = longest_prompt + options.sampling.get("max_tokens", 0)
    config = replace(options.engine, enable_structured_outputs=bool(options.form))
    config = fit_length(config, options.max_model_len, target, needed)
    if config.exact:
        # Exact mode's bits depend on the batch size, so it must not depend on the prompts.
        return config
    batch = min(len(options.prompts), config.max_num_seqs)
    return replace(config, max_num_seqs=batch, batch_buckets=(batch,))


def _generate(
    engine: Engine, answers: list[Generated], progress: OfflineProgress
) -> Iterator[Generated]:
    """Yield finished answers in the order of their requests."""
    printed = 0
    while engine.has_work:
        for output in engine.step():
            answers[int(output.request_id)].take(output)
        done = sum(answer.finish_reason is not None for answer in answers)
        progress.on_step(done, engine.stats())
        while printed < len(answers) and answers[printed].finish_reason is not None:
            yield answers[printed]
            printed += 1
