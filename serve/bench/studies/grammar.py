"""Structured output: validity, equality with plain decoding, and the cost for other requests."""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Console

from eagle3_jax.engine import CollectedOutput, Engine, Request
from eagle3_jax.engine.grammars.interface import NO_GRAMMARS
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from eagle3_jax.sampling.token_mask import open_masks
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions
from serve.bench.common.drive import BATCH, EIGHT_SLOTS, drive
from serve.bench.common.flags import add_pair_flags, add_shared, check_drafting
from serve.bench.common.held_out import held_out
from serve.bench.common.spread import Spread
from serve.bench.grammar.schemas import fits
from serve.bench.grammar.tool_calls import ToolCalls, describe, measure_calls
from serve.pair.loading import LoadedPair, build_engine
from serve.text_table import text_table

MOST_TOKENS = 256
NEIGHBOUR_TOKENS = 96
NAME = {"type": "string", "minLength": 1, "maxLength": 12}
PERSON = {"name": NAME, "age": {"type": "integer", "minimum": 0, "maximum": 120}, "city": NAME}
POINT = {axis: {"type": "integer", "minimum": -99, "maximum": 99} for axis in ("x", "y")}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    required = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **required}


SCHEMAS: tuple[dict[str, Any], ...] = (
    _object(PERSON),
    _object({"points": {"type": "array", "items": _object(POINT), "minItems": 1, "maxItems": 3}}),
    _object({"sky": {"enum": ["clear", "cloudy", "rainy"]}, "cold": {"type": "boolean"}}),
    _object({"people": {"type": "array", "items": _object(PERSON), "maxItems": 2}, "tag": NAME}),
)
LONG = StructuredOutputs(json={"type": "array", "items": {"type": "integer"}, "minItems": 200})
EIGHTH: dict[str, dict[str, Any]] = {
    "no option": {},
    "a bias": {"logit_bias": {5: 0.0}},
    "a schema": {"structured_outputs": LONG},
}
"""What the eighth request of a batch of eight asks for, whose seven others ask for nothing."""


@dataclass(frozen=True)
class Neighbours:
    """Seconds in which seven requests got their tokens, and those over the first case's."""

    eighth: str
    seconds: Spread
    ratio: float


@dataclass(frozen=True)
class StructuredRecord:
    """What `eagle3-bench grammar` found.

    valid: answers that are JSON and fit their schema. identical: those that are plain decoding's,
    token for token. mask_s: seconds in which the host makes the masks of one request's round.
    tool_calls: None where the checkpoint's calls can't be read.
    """

    num_speculative_tokens: int
    temperature: float
    generations: int
    valid: int
    identical: int
    accept_length: float
    mask_s: float
    neighbours: list[Neighbours]
    tool_calls: ToolCalls | None = None

    @property
    def holds(self) -> bool:
        """Whether all answers and calls are valid and plain decoding's."""
        calls_hold = self.tool_calls is None or self.tool_calls.holds
        return calls_hold and self.valid == self.identical == self.generations


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The pair, k and how often."""
    parser.set_defaults(check=check_drafting)
    add_pair_flags(parser)
    add_shared(parser, "--num-speculative-tokens")
    parser.add_argument("--generations", type=int, default=500, metavar="N", help="answers")
    add_shared(parser, "--repetitions", help="of the timing")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Generates by schema, and calls tools; status 1 where an answer or call is invalid, or not
    plain decoding's."""
    found, pair = conditions(), given_pair(flags)
    prompts = [p.token_ids for p in held_out(pair.tokenizer, 40) if p.category == "structured"]
    counts = flags.generations, flags.k, flags.repetitions
    result = measure_structured(pair, prompts, *counts)
    result = replace(result, tool_calls=measure_calls(pair, *counts))
    print_result(console, result)
    return finish(flags, "grammar", found, result)


def print_result(console: Console, result: StructuredRecord) -> None:
    """How many answers are right, and the cost of a schema for other requests of the batch."""
    k, count = result.num_speculative_tokens, result.generations
    console.print(
        f"{count} generations by schema, temperature {result.temperature:g}, k={k}: "
        f"{result.valid} valid, {result.identical} identical to plain decoding; accept length "
        f"{result.accept_length:.2f}, masks of a round {result.mask_s * 1e6:.0f} us a request"
    )
    title = "Seven requests without options beside an eighth"
    headings = ("the eighth has", "ms until the seven are done", "ratio")
    table = text_table(title, headings, left=("the eighth has",))
    for case in result.neighbours:
        table.add_row(case.eighth, case.seconds.milliseconds, f"{case.ratio:.2f}")
    console.print(table)
    if result.tool_calls is not None:
        console.print(describe(result.tool_calls))


def measure_structured(
    pair: LoadedPair, prompts: Sequence[list[int]], generations: int, k: int, repetitions: int
) -> StructuredRecord:
    """Everything at temperature 1; ValueError without llguidance."""
    sizes = {"max_model_len": max(map(len, prompts)) + MOST_TOKENS, **EIGHT_SLOTS}
    engine = build_engine(pair, num_speculative_tokens=k, **sizes)
    if engine.grammars is None:
        raise ValueError(NO_GRAMMARS)
    plain = build_engine(replace(pair, draft=None), num_speculative_tokens=0, **sizes)
    requests = [structured_request(prompts, index) for index in range(generations)]
    found, expected = drive(engine, requests), drive(plain, requests)
    accept_length = engine.stats().accept_length
    return StructuredRecord(
        num_speculative_tokens=k,
        temperature=1.0,
        generations=generations,
        valid=sum(is_valid(answer, index) for index, answer in enumerate(found.values())),
        identical=sum(found[name].token_ids == expected[name].token_ids for name in found),
        accept_length=accept_length or 1.0,
        mask_s=_mask_seconds(engine, requests, found, pair.target.config.vocab_size),
        neighbours=_measure_neighbours(engine, prompts, repetitions),
    )


def structured_request(prompts: Sequence[list[int]], index: int) -> Request:
    """The index-th generation: prompts and schemas in turn, seeds counting up."""
    outputs = StructuredOutputs(json=SCHEMAS[index % len(SCHEMAS)])
    sampling = SamplingParams(seed=index, max_tokens=MOST_TOKENS, structured_outputs=outputs)
    return Request(f"{index}", prompts[index % len(prompts)], sampling)


def is_valid(answer: CollectedOutput, index: int) -> bool:
    """Whether a generation ended by itself, and is JSON that fits its schema."""
    try:
        value = json.loads(answer.text)
    except json.JSONDecodeError:
        return False
    return answer.finish_reason == "stop" and fits(value, SCHEMAS[index % len(SCHEMAS)])


def _mask_seconds(
    engine: Engine,
    requests: Sequence[Request],
    answers: dict[str, CollectedOutput],
    vocab_size: int,
) -> float:
    """The mean over rounds that would have accepted every draft."""
    assert engine.grammars is not None, "it was asked for"
    spent, rounds, k = 0.0, 0, engine.config.num_speculative_tokens
    for request in requests[: 4 * len(SCHEMAS)]:
        outputs, tokens = request.sampling.structured_outputs, answers[request.request_id].token_ids
        assert outputs is not None, "every request has a schema"
        matcher = engine.grammars.compile(outputs).start()
        for start in range(0, len(tokens), k + 1):
            masks = open_masks(vocab_size, k + 1)
            began = time.perf_counter()
            matcher.fill(masks, tokens[start : start + k])
            spent, rounds = spent + time.perf_counter() - began, rounds + 1
            for token in tokens[start : start + k + 1]:
                matcher.commit(token)
    return spent / rounds


def _measure_neighbours(
    engine: Engine, prompts: Sequence[list[int]], repetitions: int
) -> list[Neighbours]:
    """Each case once to compile, then all in turn."""
    samples: dict[str, list[float]] = {eighth: [] for eighth in EIGHTH}
    for repetition in range(repetitions + 1):
        for eighth in EIGHTH:
            seconds = _time_neighbours(engine, prompts, EIGHTH[eighth])
            if repetition:
                samples[eighth].append(seconds)
    spreads = {eighth: Spread.of(seconds) for eighth, seconds in samples.items()}
    first = spreads["no option"].median
    return [Neighbours(name, spread, spread.median / first) for name, spread in spreads.items()]


def _time_neighbours(engine: Engine, prompts: Sequence[list[int]], eighth: dict[str, Any]) -> float:
    """Seconds from the first step until seven requests have their tokens; the same in each case."""
    for index in range(BATCH):
        options = eighth if index == BATCH - 1 else {}
        sampling = SamplingParams(
            seed=index, max_tokens=NEIGHBOUR_TOKENS, ignore_eos=True, **options
        )
        engine.add(Request(f"{index}", prompts[index % len(prompts)], sampling))
    waiting = {f"{index}" for index in range(BATCH - 1)}
    began = time.perf_counter()
    while waiting:
        waiting -= {output.request_id for output in engine.step() if output.finish_reason}
    seconds = time.perf_counter() - began
    engine.cancel(f"{BATCH - 1}")
    while engine.has_work:
        engine.step()
    return seconds
