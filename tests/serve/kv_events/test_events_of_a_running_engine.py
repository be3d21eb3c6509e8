"""A process that hears an engine's events over the wire has the engine's index, tier by tier."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from driving import drive
from kv_index import places_in
from simulated_device import VOCAB, SimulatedRunner, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig, Request, RequestOutput
from eagle3_jax.sampling.params import SamplingParams
from serve.kv_events.config import KVEventsConfig
from serve.kv_events.publisher import KVEventPublisher

ANY, SIZE = "tcp://127.0.0.1:0", 4096
"""Bytes of a page, of which the simulated device's need fewer."""
FOLLOWER = str(Path(__file__).parents[1] / "vllm_wire.py")
"""Keeps an index of its own from a publisher's messages."""


def asked(rng: random.Random) -> list[Request]:
    """Prompts of a few stems that are cut anywhere, some with a salt."""
    stems = [[rng.randrange(VOCAB) for _ in range(40)] for _ in range(5)]
    return [
        Request(
            f"{i}",
            [*rng.choice(stems)[: rng.randrange(1, 40)], rng.randrange(VOCAB)],
            SamplingParams(max_tokens=rng.randrange(1, 20), seed=i),
            rng.choice(["", "", "mine"]),
        )
        for i in range(60)
    ]


def test_another_process_has_the_index_of_an_engine_that_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the devices, the host's memory and the disk, from vLLM's messages alone."""
    monkeypatch.setattr(SimulatedRunner, "page_bytes", SIZE)
    config = EngineConfig(
        2,
        max_model_len=64,
        max_num_seqs=3,
        page_size=4,
        num_pages=30,
        prefill_chunk=8,
        kv_offloading_bytes=40 * SIZE,
        kv_offloading_dir=str(tmp_path),
        kv_offloading_dir_bytes=60 * 2 * SIZE,
    )
    with KVEventPublisher(KVEventsConfig(ANY, ANY)) as publisher:
        engine = Engine(*simulated_pair(monkeypatch), config, kv_events=publisher.log)
        step = engine.step

        def step_and_publish() -> list[RequestOutput]:
            outputs = step()
            publisher.publish()
            return outputs

        monkeypatch.setattr(engine, "step", step_and_publish)
        drive(engine, asked(random.Random(3)), arrival_gap=2)
        last = publisher._next_number - 1
        where = (publisher.endpoint, f"{publisher.replay_endpoint}", f"{last}")
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.check_output([sys.executable, FOLLOWER, *where], env=path, timeout=60)
    places = sorted((medium, int.from_bytes(key[-8:])) for medium, key in places_in(engine))
    assert {medium for medium, _ in places} == {"GPU", "CPU", "STORAGE"}
    assert told == f"{places}\n".encode()
    engine.close()
