"""Images over HTTP to an engine on the simulated device: read, counted, found again."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from chat_tokenizers import kimi
from fake_server import Served, served_by
from seeing import chat, data_url, part, picture, text
from simulated_device import simulated_engine
from tiny_vision import VISION

from eagle3_jax.engine import EngineConfig
from serve.chat_setup import set_up_images
from serve.images.options import ImageOptions

CHAT, PAGE = "/v1/chat/completions", 16
(PAD,) = kimi().encode("<|media_pad|>", add_special=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    vision = replace(VISION, media_placeholder_token_id=PAD)
    config = EngineConfig(3, max_model_len=256, page_size=PAGE, enable_structured_outputs=False)
    engine = simulated_engine(monkeypatch, config, tokenizer=kimi(), vision=vision)
    seeing: Any = SimpleNamespace(config=vision)
    with ExitStack() as owner:
        images = set_up_images(ImageOptions(), seeing, owner)
        running = owner.enter_context(served_by(engine, kimi(), images=images))
        yield running


def asked(server: Served, *parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    options = {"seed": 1, "ignore_eos": True, "return_token_ids": True}
    return server.ask(CHAT, **chat(*parts, **options, **fields))


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
    tokens = [a["choices"][0]["token_ids"] for a in (first, again, plain, other)]
    assert tokens[0] == tokens[1] == tokens[2] != tokens[3]
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
