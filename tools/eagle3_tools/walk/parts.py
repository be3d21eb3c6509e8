"""The parts of a walk, in the order in which they run."""

import base64
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_tools.bench.load.server_process import metric
from eagle3_tools.make_demo.corpus.structured import TOOLS
from eagle3_tools.make_demo.pictures.picture import png
from eagle3_tools.make_demo.pictures.questions import held_out
from eagle3_tools.walk.answers import Answer, Found
from eagle3_tools.walk.place import SMALL, Place, answers_of
from eagle3_tools.walk.random_pair import write_random_minimax
from serve.demo import demo_draft_dir, demo_target_dir

QUESTION = "What is 95 + 61?"
GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": 1, "max_tokens": 16}
SAMPLED: dict[str, Any] = {"temperature": 0.6, "top_p": 0.9, "seed": 2, "max_tokens": 16}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STOPPED_S = 30.0
"""Time for the server to notice that a client has left."""
_POLL_S = 0.1

_ONE = ("--max-num-seqs", "1", *SMALL)
_FP8_CACHE = ("--kv-cache-dtype", "fp8", "--kv-cache-scale", "0.05")
_SEEING = ("--max-num-seqs", "1", "--max-model-len", "512")
_NO_METRICS = ("--per-request-spec-decode-metrics", "none")
_FOUR = ("--demo", *_ONE, *_NO_METRICS)
SERVERS: dict[str, tuple[str, ...]] = {
    "text": ("--demo", "--max-num-seqs", "2", *SMALL, *_NO_METRICS),
    "images": ("--demo-vision", *_SEEING, *_NO_METRICS),
    "tensor": (*_FOUR, "--tensor-parallel-size", "4"),
    "experts": (*_FOUR, "--data-parallel-size", "2", "--enable-expert-parallel"),
    "contexts": (*_FOUR, "--tensor-parallel-size", "2", "--decode-context-parallel-size", "2"),
}
"""Name -> flags of eagle3-serve. Neighbouring parts of one name share one start."""


@dataclass(frozen=True)
class Part:
    """One part: its function, the server that it needs, if any, and its devices."""

    name: str
    run: Callable[[Place], Found]
    server: str | None = None
    devices: int = 1


def _message(text: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "return_token_ids": True, **fields}


def _served(name: str, reply: Mapping[str, Any], sampling: Mapping[str, Any]) -> Answer:
    """Return the first choice of a reply, whose text model may explain a tie."""
    (choice,) = reply["choices"]
    prompt = reply.get("prompt_token_ids") or choice["prompt_token_ids"]
    fields = choice["token_ids"], choice["spec"]["accepted"], {**sampling}
    return Answer(name, prompt, *fields, target=str(demo_target_dir()))


def _chat(place: Place) -> Found:
    reply = place.post(CHAT, _message(QUESTION, **GREEDY))
    text = reply["choices"][0]["message"]["content"]
    return Found([_served("chat", reply, GREEDY)], {"text": text})


def _completions(place: Place) -> Found:
    texts = {"greedy": (GREEDY, "The mayor of Oshby is"), "sampled": (SAMPLED, "Velmora: what")}
    bodies = [
        (COMPLETIONS, {"prompt": prompt, "return_token_ids": True, **sampling})
        for sampling, prompt in texts.values()
    ]
    replies = zip(texts.items(), place.together(bodies), strict=True)
    return Found([_served(name, reply, given[0]) for (name, given), reply in replies])


def _strict_call(place: Place) -> Found:
    tool = json.loads(json.dumps(TOOLS["get_weather"]))
    tool["function"]["strict"] = True
    tool["function"]["parameters"]["additionalProperties"] = False
    body = _message("What is the weather in Oslo?", tools=[tool], **GREEDY | {"max_tokens": 48})
    reply = place.post(CHAT, body | {"tool_choice": "required"})
    (choice,) = reply["choices"]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    if list(arguments) != ["city"] or not isinstance(arguments["city"], str):
        raise ValueError(f"expected the argument city of the schema, got {arguments}")
    answer = Answer("call", reply["prompt_token_ids"], choice["token_ids"], 0)
    return Found([answer], {"name": call["function"]["name"], "arguments": arguments})


def _cancelled(place: Place) -> Found:
    """Leave a stream after two events; the sequence ends, and the next answer is whole."""
    body = _message(QUESTION, **GREEDY | {"max_tokens": 128}, ignore_eos=True, stream=True)
    lines = place.leave_after(2, CHAT, body)
    deadline = time.monotonic() + min(STOPPED_S, place.left_s)
    while metric(place.metrics(), "vllm:num_requests_running"):
        if time.monotonic() > deadline:
            raise TimeoutError(f"the sequence of a client that left ran on for {STOPPED_S:g} s")
        time.sleep(_POLL_S)
    reply = place.post(CHAT, _message(QUESTION, **GREEDY))
    return Found([_served("next", reply, GREEDY)], {"lines": lines})


def _prefix_hit(place: Place) -> Found:
    prompt = "The river that runs through Velmora is the Tarn. " * 4
    body = {"prompt": prompt, "return_token_ids": True, **GREEDY}
    first, second = (place.post(COMPLETIONS, body) for _ in range(2))
    cached = [reply["usage"]["prompt_tokens_details"]["cached_tokens"] for reply in (first, second)]
    if not cached[1]:
        raise ValueError("the second request of a prompt found none of its pages")
    answers = [_served(name, r, GREEDY) for name, r in (("first", first), ("second", second))]
    return Found(answers, {"cached": cached})


def _image(place: Place) -> Found:
    asked = next(held_out())
    url = f"data:image/png;base64,{base64.b64encode(png(asked.picture)).decode()}"
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": asked.question.text},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "return_token_ids": True, **GREEDY}
    reply = place.post(CHAT, body)
    (choice,) = reply["choices"]
    counts = choice["token_ids"], choice["spec"]["accepted"]
    answer = Answer("image", reply["prompt_token_ids"], *counts)
    return Found([answer], {"text": choice["message"]["content"]})


def _second_start(place: Place) -> Found:
    """Answer as the first server did; its start has compiled no program."""
    before = place.compiled()
    with place.served(SERVERS["text"]) as there:
        found = _chat(there)
    if not before:
        raise ValueError("no program was kept before the second start: run `chat` too")
    if fresh := place.compiled() - before:
        raise ValueError(f"the second start compiled {sorted(fresh)}")
    return found


def _generate(place: Place, *flags: str | Path) -> Found:
    """Run eagle3-generate on one greedy prompt with the flags of a pair and an engine."""
    sampling = [f"--{name.replace('_', '-')}={value}" for name, value in GREEDY.items()]
    said = place.run("eagle3-generate", *flags, "--prompt", QUESTION, "--json", *sampling)
    (line,) = answers_of(said)
    answer = Answer("answer", [], line["token_ids"], sum(line["accepted"]))
    return Found([answer], {"text": line["text"]})


def _orbax(place: Place) -> Found:
    made = place.folder / "orbax"
    place.run("eagle3-convert", demo_target_dir(), made)
    place.run("eagle3-convert", "--verify", demo_target_dir(), made)
    return _generate(place, made, "--draft", demo_draft_dir(), *_ONE)


def _quantised(place: Place) -> Found:
    target = _quantise(place, demo_target_dir(), "mxfp4")
    draft = _quantise(place, demo_draft_dir(), "ptpc_fp8")
    return _generate(place, target, "--draft", draft, *_ONE, *_FP8_CACHE)


def _minimax(place: Place) -> Found:
    target, draft = write_random_minimax(place.folder / "minimax")
    return _generate(place, target, "--draft", _quantise(place, draft, "int4"), *_ONE)


def _quantise(place: Place, source: Path, scheme: str) -> Path:
    made = place.folder / scheme
    place.run("eagle3-quantize", source, made, "--scheme", scheme)
    return made


def _pages(place: Place) -> Found:
    (facts,) = answers_of(place.run("eagle3_tools.walk.pages"))
    return Found(facts=facts)


def _engine(place: Place) -> Found:
    """Answer without a server, with the few programs that two greedy requests run."""
    (found,) = answers_of(place.run("eagle3_tools.walk.answer", "1"))
    answers = [Answer(str(k), [], tokens, 0) for k, tokens in enumerate(found.pop("tokens"))]
    if found.pop("more_held"):
        raise ValueError("the device holds more memory than its arrays need")
    return Found(answers, found)


def _training_step(place: Place) -> Found:
    made, data = place.folder / "trained", place.folder / "corpus.jsonl"
    place.run("eagle3_tools.make_demo", "corpus", data, "--conversations", "20")
    sizes = "--steps 1 --rows 1 --row-length 160 --unroll 2 --draft-vocab 512".split()
    paths = ("--target", demo_target_dir(), "--data", data, "--output", made)
    place.run("eagle3-train", "draft", *paths, *sizes)
    (step,) = answers_of((made / "training" / "log.jsonl").read_text())
    return Found(facts={"loss": float(step["loss"])})


PARTS: Sequence[Part] = (
    Part("engine", _engine),
    Part("chat", _chat, "text"),
    Part("completions", _completions, "text"),
    Part("strict call", _strict_call, "text"),
    Part("cancelled request", _cancelled, "text"),
    Part("prefix hit", _prefix_hit, "text"),
    Part("second start", _second_start),
    Part("generate", lambda place: _generate(place, "--demo", *_ONE)),
    Part("orbax", _orbax),
    Part("host memory", _pages),
    Part("image", _image, "images"),
    Part("quantised", _quantised),
    Part("minimax", _minimax),
    Part("training step", _training_step),
    Part("tensor parallel", _chat, "tensor", devices=4),
    Part("experts and data parallel", _chat, "experts", devices=4),
    Part("context parallel", _chat, "contexts", devices=4),
)
