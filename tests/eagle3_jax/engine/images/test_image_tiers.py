"""Pages with images below the devices: in the host's memory and in a directory.

A page is found there by whoever sends the same image, and by nobody else: another one of the same
grid, and text of placeholders, find the pages before it alone.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import pytest
from driving import drive, sizes
from sweeps import sweep
from tiny import TARGET, latent_draft, tiny_draft, tiny_target
from tiny_vision import PAD, VISION, drawn, image, seeing_target, tiny_vision, with_images

from eagle3_jax.engine import Engine, Request
from eagle3_jax.engine.page_tiers import NO_TOKENS, TokensByTier
from eagle3_jax.mesh import make_mesh, shard
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import ImageItem

ROOM = 10_000_000
STEM = [5, 9, 2, 7, 11, 3, 8, 1, 6, 4]
SEEN, OTHER = image(1, 8, 6), image(2, 8, 6)
"""12 tokens each, from position 10 on."""
TAIL = [1, 2, 30, 4, 5]
BEFORE, WHOLE = 8, 24
"""Tokens in whole pages before the image, and in all pages but the last token's."""
DIVIDED = {"decode_context_parallel_size": 2, "page_size": 2, "exact": True}
FLOAT8 = {"kv_cache_dtype": "fp8", "kv_cache_scale": 0.05}


def asked(*parts: ImageItem | list[int], salt: str = "") -> Request:
    sampling = SamplingParams(temperature=0.7, seed=4, max_tokens=10)
    return with_images("r", parts, sampling, cache_salt=salt)


def told(engine: Engine, request: Request) -> tuple[list[int], list[int], TokensByTier | None]:
    """Tokens, accepted drafts, and where the prompt's tokens were found."""
    answer = drive(engine, [request])["r"]
    # Behind these rounds it depends on what the host has read whether there is room for drafts.
    return answer.token_ids, answer.accepted[:3], answer.outputs[-1].cached


def push_down(engine: Engine) -> None:
    """Other prompts take the devices' pages."""
    sampling = SamplingParams(max_tokens=20, temperature=0)
    others = [Request(f"{i}", [7 * i + j for j in range(40)], sampling) for i in range(8)]
    drive(engine, others)


def on_one_device(draft: Any, **fields: Any) -> Engine:
    parts = seeing_target(), draft(seeing_target()), sizes(3, **fields)
    return Engine(*parts, eos_token_ids=(), vision=tiny_vision())


def on_two_devices(**fields: Any) -> Engine:
    """They divide contexts."""
    target = tiny_target(config=replace(TARGET, media_placeholder_token_id=PAD))
    draft, vision = latent_draft(target), drawn(VISION)
    mesh = make_mesh(2, devices=jax.devices()[:2])
    for model in (target, draft, vision):
        shard(model, mesh)
    parts = target, draft, sizes(3, **fields)
    return Engine(*parts, eos_token_ids=(), vision=vision)


DIVIDED_EXACTLY = "exact, float8, context of two devices"
MAKERS: dict[str, Any] = {
    "MHA": lambda **fields: on_one_device(tiny_draft, **fields),
    "MHA sees": lambda **fields: on_one_device(tiny_draft, mm_draft_embedding="target", **fields),
    "MLA": lambda **fields: on_one_device(latent_draft, **fields),
    DIVIDED_EXACTLY: lambda **f: on_two_devices(**DIVIDED, **FLOAT8, **f),
}


@pytest.mark.parametrize("maker", sweep(MAKERS, ["MHA sees"]))
def test_the_hosts_memory_keeps_pages_by_their_images(maker: str) -> None:
    engine = MAKERS[maker](kv_offloading_bytes=ROOM)
    fresh = told(engine, asked(STEM, SEEN, TAIL, salt="a"))
    first = told(engine, asked(STEM, SEEN, TAIL))
    assert first == fresh and fresh[2] == NO_TOKENS
    push_down(engine)
    again = told(engine, asked(STEM, SEEN, TAIL))
    assert again == (*fresh[:2], TokensByTier(host=WHOLE))
    push_down(engine)
    other = told(engine, asked(STEM, OTHER, TAIL))
    assert other[2] == TokensByTier(host=BEFORE)
    assert other[:2] == told(engine, asked(STEM, OTHER, TAIL, salt="b"))[:2]
    push_down(engine)
    assert told(engine, asked(STEM, [PAD] * 12, TAIL))[2] == TokensByTier(host=BEFORE)


@pytest.mark.parametrize("maker", sweep(["MHA", DIVIDED_EXACTLY], ["MHA"]))
def test_a_restarted_engine_finds_pages_by_their_images(maker: str, tmp_path: Path) -> None:
    kept: dict[str, Any] = {
        "kv_offloading_bytes": ROOM,
        "kv_offloading_dir": str(tmp_path),
        "kv_offloading_dir_bytes": ROOM,
        "num_pages": 60,
    }
    engine = MAKERS[maker](**kept)
    first = told(engine, asked(STEM, SEEN, TAIL))
    engine.close()
    restarted = MAKERS[maker](**kept)
    again = told(restarted, asked(STEM, SEEN, TAIL))
    assert again == (*first[:2], TokensByTier(disk=WHOLE))
    other = told(restarted, asked(STEM, OTHER, TAIL))
    assert other[2] == TokensByTier(device=BEFORE)
    restarted.close()
