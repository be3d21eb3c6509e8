"""Images over HTTP to a pair that sees: read, encoded, answered, with drafts as without."""

from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from chat_tokenizers import kimi
from fake_server import Served, served_by
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
    engine = Engine(target, draft, config, tokenizer=kimi(), eos_token_ids=(), vision=vision)
    with served_by(engine, kimi(), images=set_up_images(ImageOptions(), vision)) as running:
        yield running


def asked(server: Served, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    options = {"temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": True}
    body = chat(*parts, **options, **fields)
    answer = server.http.post(CHAT, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def ids(answer: dict[str, Any]) -> list[int]:
    return answer["choices"][0]["token_ids"]


def logprobs(answer: dict[str, Any]) -> Any:
    content = answer["choices"][0]["logprobs"]["content"]
    return pytest.approx([entry["logprob"] for entry in content], abs=1e-4)


def stat(server: Served, name: str) -> float:
    lines = server.http.get("/metrics").text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(f"{name}{{"))


def test_a_chat_with_an_image_is_the_same_without_drafts_and_depends_on_the_image(
    server: Served,
) -> None:
    red, blue = part(picture(colour="red")), part(picture(colour="blue"))
    question = text("What colour?")
    drafted = asked(server, red, question)
    plain = asked(server, red, question, speculative={"num_tokens": 0})
    assert ids(drafted) == ids(plain)
    assert logprobs(asked(server, blue, question)) != logprobs(drafted).expected


def test_usage_counts_what_the_image_takes_and_the_prefix_cache_knows_images(
    server: Served,
) -> None:
    """Images of 4 and of 16 tokens; what was asked before is found, another image is not."""
    question = text("Which one is it?")
    small = asked(server, part(picture(8, 8, "green")), question)
    first = asked(server, part(picture(16, 16, "green")), question)
    again = asked(server, part(picture(16, 16, "green")), question)
    other = asked(server, part(picture(16, 16, "black")), question)
    prompts = [answer["usage"]["prompt_tokens"] for answer in (small, first, again, other)]
    assert prompts == [prompts[0], *[prompts[0] + 12] * 3]
    cached = [
        answer["usage"]["prompt_tokens_details"]["cached_tokens"] // PAGE
        for answer in (first, again, other)
    ]
    assert cached[1] > cached[0] == cached[2]
    assert logprobs(first) == logprobs(again).expected
    assert logprobs(first) != logprobs(other).expected


def test_an_image_is_the_same_in_all_protocols(server: Served) -> None:
    data, words = picture(24, 16, "yellow"), "Say what you see."
    expected = asked(server, part(data), text(words))["usage"]["prompt_tokens"]
    encoded = stat(server, "eagle3:images_encoded_total")
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(data).decode()}
    content = [{"type": "image", "source": source}, {"type": "text", "text": words}]
    messages = [{"role": "user", "content": content}]
    body: dict[str, Any] = {"model": "fake", "max_tokens": 4, "messages": messages}
    message = server.http.post("/v1/messages", json=body).json()
    usage = message["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == expected
    given = [
        {"type": "input_image", "image_url": data_url(data)},
        {"type": "input_text", "text": words},
    ]
    body = {"model": "fake", "max_output_tokens": 16, "input": [{"role": "user", "content": given}]}
    response = server.http.post("/v1/responses", json=body).json()
    assert response["usage"]["input_tokens"] == expected
    assert stat(server, "eagle3:images_encoded_total") == encoded


def test_a_typed_placeholder_is_text_beside_an_image(server: Served) -> None:
    typed = asked(server, part(picture(16, 16)), text("<|media_pad|>"))
    assert typed["choices"][0]["finish_reason"] == "length"
