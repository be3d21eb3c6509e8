"""Images over HTTP to a pair that sees: read, encoded, answered, with drafts as without."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from chat_tokenizers import kimi
from fake_server import Served, served_by
from few_programs import few_programs
from seeing import chat, data_url, part, picture, text
from tiny import DRAFT, TARGET, tiny_draft, tiny_target
from tiny_vision import VISION, drawn

from eagle3_jax.engine import Engine, EngineConfig
from serve.chat_setup import set_up_images
from serve.images.options import ImageOptions

CHAT, PAGE = "/v1/chat/completions", 16
(PAD,) = kimi().encode("<|media_pad|>", add_special=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    vocab = kimi().vocab_size
    sized = replace(TARGET, vocab_size=vocab, media_placeholder_token_id=PAD)
    target = tiny_target(config=sized)
    draft = tiny_draft(target, config=replace(DRAFT, vocab_size=vocab, draft_vocab_size=vocab))
    vision = drawn(replace(VISION, media_placeholder_token_id=PAD))
    sizes: dict[str, Any] = {"max_num_seqs": 2, "batch_buckets": (2,), "max_model_len": 256}
    config = EngineConfig(3, page_size=PAGE, enable_structured_outputs=False, **sizes)
    with patch("eagle3_jax.engine.programs.executor.all_programs", few_programs):
        engine = Engine(target, draft, config, tokenizer=kimi(), eos_token_ids=(), vision=vision)
    with served_by(engine, kimi(), images=set_up_images(ImageOptions(), vision)) as running:
        yield running


def asked(server: Served, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    options = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": True}
    answer = server.http.post(CHAT, json=chat(*parts, **options, **fields))
    assert answer.status_code == 200, answer.text
    return answer.json()


def logprobs(answer: dict[str, Any]) -> Any:
    content = answer["choices"][0]["logprobs"]["content"]
    return pytest.approx([entry["logprob"] for entry in content], abs=1e-4)


def test_an_answer_is_the_same_without_drafts_and_depends_on_the_image(server: Served) -> None:
    """The prefix cache finds an earlier prompt, but not one with another image. Usage counts images
    of 4 and of 16 tokens, and those of other protocols, which are encoded once."""
    question = text("Which one is it?")
    small = asked(server, part(picture(8, 8, "green")), question)
    first = asked(server, part(picture(16, 16, "green")), question)
    again = asked(server, part(picture(16, 16, "green")), question)
    other = asked(server, part(picture(16, 16, "black")), question)
    plain = asked(server, part(picture(16, 16, "green")), question, speculative={"num_tokens": 0})
    prompts = [answer["usage"]["prompt_tokens"] for answer in (small, first, again, other)]
    assert prompts == [prompts[0], *[prompts[0] + 12] * 3]
    cached = [
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] // PAGE
        for answer in (first, again, other)
    ]
    assert cached[1] > cached[0] == cached[2]
    assert first["choices"][0]["token_ids"] == plain["choices"][0]["token_ids"]
    assert logprobs(first) == logprobs(again).expected
    assert logprobs(first) != logprobs(other).expected
    encoded = num_encoded(server)
    image = {"type": "input_image", "image_url": data_url(picture(16, 16, "green"))}
    content = [image, {"type": "input_text", "text": "Which one is it?"}]
    body = {"max_output_tokens": 16, "input": [{"role": "user", "content": content}]}
    response = server.http.post("/v1/responses", json=body).json()
    assert response["usage"]["input_tokens"] == prompts[1]
    assert num_encoded(server) == encoded


def num_encoded(server: Served) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    counts = [line for line in lines if line.startswith("eagle3:images_encoded_total{")]
    return float(counts[0].split()[-1])
