"""Calls of tools held to their schemas: validity, equality with plain decoding, cost elsewhere."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Any

from eagle3_jax.engine import CollectedOutput, Engine, Request
from eagle3_jax.engine.grammars.interface import NO_GRAMMARS
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.bench.common.drive import BATCH, EIGHT_SLOTS, drive
from serve.bench.common.held_out import held_out
from serve.bench.common.spread import Spread
from serve.bench.grammar.schemas import fits
from serve.chat_format.format import ChatReading, choose_reading
from serve.chat_format.parser import AnswerParser
from serve.chat_format.parts import AnswerParts
from serve.demo.corpus import held_out_prompts
from serve.openai.answer_form import answer_form
from serve.openai.protocol import ChatCompletionRequest
from serve.pair.loading import LoadedPair, build_engine

MOST_TOKENS = 160
FREE_TOKENS = 96
PROMPTS = 60
BOUNDS: Mapping[str, dict[str, Any]] = {
    "string": {"type": "string", "minLength": 1, "maxLength": 24},
    "integer": {"type": "integer", "minimum": 1, "maximum": 90},
}
"""So that what a random answer begins ends."""
UNSEEN = {"unit": {"enum": ["short", "long"]}, "again": {"type": "boolean"}}
"""Parameters that every second tool has besides: no answer the demo learnt from has them."""
Tools = list[dict[str, Any]]


@dataclass(frozen=True)
class ToolCalls:
    """What strict tools give at temperature 1.

    calls, valid: those in the answers, and those whose arguments fit their schema. identical:
    answers that are plain decoding's, token for token; unchanged: those whose tokens before the
    first call are those without strict tools. free_calls, free_valid: of the same requests without.
    free_text: seconds of eight answers without a call, and with_tools: of the same under strict
    tools.
    """

    answers: int
    calls: int
    valid: int
    identical: int
    unchanged: int
    accept_length: float
    free_calls: int
    free_valid: int
    free_text: Spread
    with_tools: Spread

    @property
    def holds(self) -> bool:
        """Whether all calls are valid, and all answers what they should be."""
        return self.valid == self.calls and self.identical == self.unchanged == self.answers


@dataclass(frozen=True)
class Asked:
    """One request: its prompt, the tools it offers and the form its calls are held to."""

    prompt: list[int]
    tools: Tools
    form: StructuredOutputs | None


def describe(found: ToolCalls) -> str:
    """Validity with and without strict tools, equality, and what free text costs."""
    ratio = found.with_tools.median / found.free_text.median
    return (
        f"{found.answers} answers with strict tools, temperature 1: {found.calls} calls, "
        f"{found.valid} valid (without strict tools {found.free_valid} of {found.free_calls}); "
        f"{found.identical} answers identical to plain decoding, {found.unchanged} unchanged "
        f"before the first call; accept length {found.accept_length:.2f}. {BATCH} answers that "
        f"call nothing: {found.free_text.milliseconds} ms, under strict tools "
        f"{found.with_tools.milliseconds} ms, ratio {ratio:.2f}"
    )


def measure_calls(pair: LoadedPair, count: int, k: int, repetitions: int) -> ToolCalls | None:
    """Questions until there are so many calls, at temperature 1; None where the checkpoint has no
    marks of calls. ValueError without llguidance."""
    reading = choose_reading(pair.tokenizer)
    if reading.tools is None:
        return None
    asked = list(islice(_asked(pair, reading), count + count // 4))
    longest = max(len(one.prompt) for one in asked)
    sizes = {"max_model_len": longest + MOST_TOKENS, **EIGHT_SLOTS}
    engine = build_engine(pair, num_speculative_tokens=k, **sizes)
    if engine.grammars is None:
        raise ValueError(NO_GRAMMARS)
    plain = build_engine(replace(pair, draft=None), num_speculative_tokens=0, **sizes)
    requests = [_request(i, one, one.form) for i, one in enumerate(asked)]
    strict, expected = drive(engine, requests), drive(plain, requests)
    accept_length = engine.stats().accept_length
    free = drive(engine, [_request(i, one, None) for i, one in enumerate(asked)])
    calls, valid = _count(pair, reading, asked, strict)
    free_calls, free_valid = _count(pair, reading, asked, free)
    mark, _ = reading.call_ids
    free_text, with_tools = _time_free_text(pair, engine, asked[0].form, repetitions)
    return ToolCalls(
        answers=len(asked),
        calls=calls,
        valid=valid,
        identical=sum(strict[name].token_ids == expected[name].token_ids for name in strict),
        unchanged=sum(_before(strict[n], mark) == _before(free[n], mark) for n in strict),
        accept_length=accept_length or 1.0,
        free_calls=free_calls,
        free_valid=free_valid,
        free_text=free_text,
        with_tools=with_tools,
    )


def _asked(pair: LoadedPair, reading: ChatReading) -> Iterator[Asked]:
    """Questions that call for a tool, again and again."""
    conversations = held_out_prompts("structured", PROMPTS)
    calling = [c for c in conversations if c.answer.get("tool_calls")]
    for index, conversation in enumerate(cycle(calling)):
        tools = [_bounded(tool, harder=index % 2 > 0) for tool in conversation.tools]
        body = ChatCompletionRequest.model_validate(
            {"messages": conversation.prompt, "tools": tools}
        )
        form = answer_form(body, reading, strict_tools=True)
        yield Asked(pair.tokenizer.encode_chat(conversation.prompt, tools=tools), tools, form)


def _bounded(tool: dict[str, Any], *, harder: bool) -> dict[str, Any]:
    function = tool["function"]
    given = function["parameters"]["properties"]
    properties = {name: BOUNDS[value["type"]] for name, value in given.items()}
    properties |= UNSEEN if harder else {}
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return tool | {"function": function | {"parameters": schema | {"additionalProperties": False}}}


def _request(index: int, asked: Asked, form: StructuredOutputs | None) -> Request:
    sampling = SamplingParams(seed=index, max_tokens=MOST_TOKENS, structured_outputs=form)
    return Request(f"{index}", asked.prompt, sampling)


def _count(
    pair: LoadedPair,
    reading: ChatReading,
    asked: Sequence[Asked],
    answers: Mapping[str, CollectedOutput],
) -> tuple[int, int]:
    """Calls in the answers, and those of them that are valid."""
    calls = valid = 0
    for index, one in enumerate(asked):
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in one.tools}
        answer = answers[f"{index}"]
        parser = AnswerParser(pair.tokenizer, reading, inside_reasoning=False, schemas=schemas)
        parts = parser.take(answer.token_ids, answer.text, final=True)
        calls += len(parts.calls)
        valid += valid_calls(parts, schemas)
    return calls, valid


def valid_calls(parts: AnswerParts, schemas: Mapping[str, dict[str, Any]]) -> int:
    """How many calls name a function on offer and have JSON arguments that fit its schema."""
    count = 0
    for call in parts.calls.values():
        try:
            count += fits(json.loads(call.arguments), schemas[call.name or ""])
        except (ValueError, KeyError):
            continue
    return count


def _before(answer: CollectedOutput, mark: int) -> list[int]:
    """The tokens up to the first call."""
    ids = answer.token_ids
    return ids[: ids.index(mark) + 1] if mark in ids else ids


def _time_free_text(
    pair: LoadedPair, engine: Engine, form: StructuredOutputs | None, repetitions: int
) -> tuple[Spread, Spread]:
    """Seconds of eight answers in which nothing is called, without and with strict tools; in turn,
    after one time of each."""
    prompts = [p.token_ids for p in held_out(pair.tokenizer, BATCH) if p.category == "functions"]
    samples: tuple[list[float], list[float]] = ([], [])
    for repetition in range(repetitions + 1):
        for seconds, outputs in zip(samples, (None, form), strict=True):
            requests = [
                Request(
                    f"{index}",
                    prompt,
                    SamplingParams(
                        temperature=0,
                        max_tokens=FREE_TOKENS,
                        ignore_eos=True,
                        structured_outputs=outputs,
                    ),
                )
                for index, prompt in enumerate(prompts[:BATCH])
            ]
            began = time.perf_counter()
            drive(engine, requests)
            if repetition:
                seconds.append(time.perf_counter() - began)
    return Spread.of(samples[0]), Spread.of(samples[1])
