"""Offline generation: prompts in, text or JSON lines out, progress on standard error."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from rich.console import Console

from convert.text.tokenizer import Tokenizer
from eagle3_jax.config import TargetConfig
from eagle3_jax.engine import (
    Acceptance,
    CollectedOutput,
    Engine,
    EngineConfig,
    EngineStats,
    Request,
    RequestOutput,
)
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.asgi.sse import synthetic_field
from serve.chat_format.reasoning import after_reasoning, end_of_open_reasoning
from serve.demo import find_pair
from serve.generate.flags import GenerateOptions
from serve.openai.logprob_forms import TokenBytes, TokenTexts, logprobs_by_id
from serve.options.foreign import describe_ignored_flags
from serve.pair.cpu_threads import set_cpu_threads
from serve.pair.generation_config import spell_bad_words
from serve.pair.loading import (
    LoadedPair,
    build_engine,
    fit_length,
    load_pair,
)
from serve.pair.program_cache import keep_compiled_programs
from serve.startup import counting_bar


class OfflineProgress:
    """A bar on a terminal, and at the end one line of totals."""

    def __init__(self, console: Console, num_prompts: int) -> None:
        self._console = console
        self._num_prompts = num_prompts
        disable = not console.is_terminal
        self._bar = counting_bar(console, "{task.fields[totals]}", disable=disable)
        self._task = self._bar.add_task("compiling", totals="")
        self._totals = ""
        self._start_s = 0.0

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        if self._totals:
            self._console.print(self._totals, highlight=False)

    def put_out(self, text: str) -> None:
        """Write a line to standard output while the bar is hidden."""
        self._bar.stop()
        print(text, flush=True)
        self._bar.start()

    def on_compiled(self, program: str, done: int, total: int) -> None:
        """Show that `done` of `total` programs are compiled."""
        self._bar.update(self._task, completed=done, total=total)
        if done == total:
            self._start_s = time.monotonic()
            self._bar.update(
                self._task, description="generating", completed=0, total=self._num_prompts
            )

    def on_step(self, done: int, stats: EngineStats) -> None:
        """Show that `done` prompts are finished."""
        elapsed = time.monotonic() - self._start_s
        self._totals = (
            f"{stats.generation_tokens} tokens, {stats.generation_tokens / elapsed:.1f}/s"
        )
        if stats.num_drafts:
            self._totals += f", accept_length {stats.accept_length:.2f}"
        self._bar.update(self._task, completed=done, totals=self._totals)


@dataclass
class Generated(CollectedOutput):
    """One growing answer; its text may begin with an echo of the prompt."""

    seed: int | None = None

    def add(self, output: RequestOutput) -> None:
        """Add an output."""
        super().add(output)
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
    set_cpu_threads(options.cpu_threads)
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
            outputs = after_reasoning(form, end_of_open_reasoning(prompt, pair.tokenizer))
            params = replace(sampling, structured_outputs=outputs)
            engine.add(Request(str(index), prompt, params))
        echoes = [pair.tokenizer.decode(prompt, skip_special=False) for prompt in prompts]
        answers = [Generated(texts=[echo] if options.echo else []) for echo in echoes]
    except (OSError, ValueError) as error:
        print(f"eagle3-generate: error: {error}", file=sys.stderr)
        return 2
    for line in describe_ignored_flags(options.speculation.without_effect):
        console.print(line, highlight=False)
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
        cpu_threads=options.cpu_threads,
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
            answers[int(output.request_id)].add(output)
        done = sum(answer.finish_reason is not None for answer in answers)
        progress.on_step(done, engine.stats())
        while printed < len(answers) and answers[printed].finish_reason is not None:
            yield answers[printed]
            printed += 1
