"""A producer and a consumer over HTTP, as a router of vLLM's protocol speaks to them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from driving import sizes
from fake_engine import CharTokenizer
from fake_server import served_by
from tiny import VOCAB, tiny_draft, tiny_target

from eagle3_jax.engine import Engine, RequestOutput
from serve.kv_transfer.config import KVRole, KVTransferConfig
from serve.kv_transfer.transfers import Transfers

PROMPT = [(7 * j * j + 3) % VOCAB for j in range(39)]
BODY = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0.7, "seed": 3, "ignore_eos": True}
PATH, PULLED = "/v1/completions", 36


class Characters(CharTokenizer):
    """For the engine too."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("ascii")


@contextmanager
def server(role: KVRole) -> Iterator[httpx.Client]:
    """A server of this role over the tiny pair."""
    target = tiny_target()
    config = sizes(3, kv_offloading_bytes=10_000_000)
    engine = Engine(target, tiny_draft(target), config, tokenizer=Characters())
    transfers = Transfers(engine, KVTransferConfig(role, port=0))
    step = engine.step

    def step_and_offer() -> list[RequestOutput]:
        outputs = step()
        transfers.between_steps()
        return outputs

    engine.step = step_and_offer
    with served_by(engine, Characters(), transfers=transfers) as running:
        transfers.run_soon = running.service.engine.run_soon
        running.http.timeout = httpx.Timeout(120)
        yield running.http


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[httpx.Client, httpx.Client]]:
    """The producer and the consumer."""
    with server("producer") as producer, server("consumer") as consumer:
        yield producer, consumer


def routed(pair: tuple[httpx.Client, httpx.Client], **options: Any) -> httpx.Response:
    """What a router does: the prompt to the producer, its parameters on to the consumer."""
    producer, consumer = pair
    wish = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
    first = producer.post(
        PATH, json=BODY | {"max_tokens": 1, "stream": False, "kv_transfer_params": wish}
    )
    params = first.raise_for_status().json()["kv_transfer_params"]
    assert params["do_remote_prefill"]
    return consumer.post(PATH, json=BODY | options | {"kv_transfer_params": params})


def test_a_routed_prompt_is_answered_as_by_one_server_whole_and_streamed(
    pair: tuple[httpx.Client, httpx.Client],
) -> None:
    whole = routed(pair).raise_for_status().json()
    details = whole["usage"]["prompt_tokens_details"]
    assert details["cached_tokens"] == details["cached_tokens_details"]["remote"] == PULLED
    alone = pair[0].post(PATH, json=BODY).json()
    assert whole["choices"][0]["text"] == alone["choices"][0]["text"] != ""
    lines = routed(pair, stream=True).raise_for_status().text.split("\n\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    assert text == alone["choices"][0]["text"]
