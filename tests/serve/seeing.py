"""Servers that take images, over an engine that only remembers what it was asked."""

import io
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from chat_tokenizers import kimi
from fake_server import Served, served_by
from image_goldens import VISION, config_of
from PIL import Image
from scripted_engine import ScriptedEngine

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine import Request
from serve.engine.threads import Threads
from serve.images.decoder import QUICK_SLOTS, SLOW_SLOTS, ImageDecoder
from serve.images.options import ImageOptions
from serve.images.reader import ImageReader
from serve.images.remote import Fetcher
from serve.openai.service import ModelInfo
from serve.sandbox.sandbox import Sandbox

CONTEXT = 2**13


@dataclass
class Onlooker(ScriptedEngine):
    """Says yes to whatever it is asked."""

    max_model_len: int = CONTEXT

    def answer(self, request: Request, sibling: int) -> list[int]:
        return self.tokenizer.encode("Yes.</think>yes", add_special=True)


@cache
def vision_config() -> VisionConfig:
    """The goldens', with the placeholder of the tokenizer here."""
    (pad,) = kimi().encode("<|media_pad|>", add_special=True)
    return replace(config_of(), media_placeholder_token_id=pad)


@contextmanager
def reader(fetcher: Fetcher | None = None, **options: Any) -> Iterator[ImageReader]:
    """A reader of images for that configuration."""
    given = ImageOptions(**options)
    run = Threads("images", 2).run
    fetcher = fetcher or Fetcher(given.domains, given.max_bytes, run)
    quick, slow = Threads("quick images", QUICK_SLOTS), Threads("slow images", SLOW_SLOTS)
    with Sandbox("serve.images.decode_process") as sandbox:
        decoder = ImageDecoder(given, sandbox, quick.run, slow.run)
        yield ImageReader(vision_config(), given, run, fetcher, decoder)


@contextmanager
def seeing(images: Any = None, **options: Any) -> Iterator[Served]:
    """A server; its engine has what it was `asked`."""
    engine = Onlooker()
    model = ModelInfo(("fake",), "/models/fake", CONTEXT)
    with (
        nullcontext(images) if images else reader() as images,
        served_by(engine, kimi(), model=model, images=images, **options) as server,
    ):
        yield replace(server, engine=engine)


def golden_file(name: str) -> bytes:
    """One of the goldens' images."""
    return (VISION / "images" / f"{name}.png").read_bytes()


def picture(width: int = 28, height: int = 28, colour: str = "red", kind: str = "PNG") -> bytes:
    """A file of one colour."""
    written = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(written, kind)
    return written.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{b64encode(data).decode()}"


def part(url: str | bytes, **fields: Any) -> dict[str, Any]:
    """An image of a chat, by its URL or its file."""
    url = url if isinstance(url, str) else data_url(url)
    return {"type": "image_url", "image_url": {"url": url, **fields}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def chat(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body of a chat of one message."""
    return {"messages": [{"role": "user", "content": list(parts)}], "max_tokens": 9, **fields}
