"""A producer and a consumer over HTTP, as a router of vLLM's protocol speaks to them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest
from driving import sizes
from fake_engine import CharTokenizer
from fake_server import served_by
from simulated_device import VOCAB, SimulatedRunner, simulated_pair

from eagle3_jax.engine import Engine, RequestOutput
from serve.kv_transfer.config import KVTransferConfig
from serve.kv_transfer.transfers import Transfers

PROMPT = [(7 * j * j + 3) % VOCAB for j in range(39)]
BODY = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0.7, "seed": 3, "ignore_eos": True}
WISH = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
PATH, PULLED, KEY = "/v1/completions", 36, b"k" * 32


class Characters(CharTokenizer):
    """For the engine too."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return bytes(ids).decode("ascii")


@contextmanager
def server(config: KVTransferConfig) -> Iterator[tuple[httpx.Client, Transfers]]:
    """A server of this role on a simulated device."""
    fields = sizes(3, kv_offloading_bytes=10_000_000, enable_structured_outputs=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimulatedRunner, "page_bytes", 4096)
        engine = Engine(*simulated_pair(patch), fields, tokenizer=Characters())
        transfers = Transfers(engine, config)
        step = engine.step

        def step_and_offer() -> list[RequestOutput]:
            outputs = step()
            transfers.between_steps()
            return outputs

        engine.step = step_and_offer
        with served_by(engine, Characters(), transfers=transfers) as running:
            transfers.run_soon = running.service.engine.run_soon
            yield running.http, transfers


def test_a_routed_prompt_is_answered_as_by_one_server_whole_and_streamed() -> None:
    """The producer and the consumer share a key and name the producer alike."""
    config = KVTransferConfig("producer", host="localhost", port=0, shared_key=KEY)
    with server(config) as (producer, transfers):
        assert transfers.server
        named = ("localhost", transfers.server.address[1])
        with server(replace(config, role="consumer", producers=(named,))) as (consumer, _):

            def routed(**options: Any) -> httpx.Response:
                """The prompt goes to the producer, its parameters on to the consumer."""
                first = producer.post(
                    PATH,
                    json=BODY | {"max_tokens": 1, "stream": False, "kv_transfer_params": WISH},
                )
                params = first.raise_for_status().json()["kv_transfer_params"]
                assert params["do_remote_prefill"]
                body = BODY | options | {"kv_transfer_params": params}
                return consumer.post(PATH, json=body).raise_for_status()

            whole = routed().json()
            details = whole["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == PULLED == details["cached_tokens_details"]["remote"]
            alone = producer.post(PATH, json=BODY).json()["choices"][0]["text"]
            assert whole["choices"][0]["text"] == alone != ""
            lines = routed(stream=True).text.split("\n\n")
            events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            assert "".join(event["choices"][0]["text"] for event in events) == alone
