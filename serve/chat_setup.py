"""Applies the flags for chats and images to a checkpoint."""

from contextlib import ExitStack
from dataclasses import replace

from convert.text.chat_template import compile_template
from convert.text.tokenizer import Tokenizer
from eagle3_jax.models.vision import VisionModel
from serve.chat_format.format import ChatReading, choose_reading
from serve.chat_format.reader import END_OF_THINK
from serve.chat_format.reasoning import id_of
from serve.engine.threads import Threads
from serve.images.decoder import QUICK_SLOTS, SLOW_SLOTS, ImageDecoder
from serve.images.options import LIMIT, ImageOptions
from serve.images.reader import ImageReader, NoImages
from serve.images.remote import FETCHES, Fetcher
from serve.options.chat import ChatOptions
from serve.sandbox.sandbox import Sandbox

READING = 2
"""Number of images that are read concurrently."""


def read_answers(options: ChatOptions, tokenizer: Tokenizer) -> ChatReading:
    """Choose the answer parsers. Raises ValueError if the tokenizer lacks their marker tokens."""
    return choose_reading(
        tokenizer, options.reasoning_parser, options.tool_call_parser, options.auto_tool_choice
    )


def set_up_chat(options: ChatOptions, tokenizer: Tokenizer) -> Tokenizer:
    """Return the checkpoint's tokenizer with the chat template that the flags select.

    Raises ValueError for an invalid jinja template and where the tokenizer lacks a needed marker.
    """
    read_answers(options, tokenizer)
    budget = options.thinking_token_budget
    if budget is not None and id_of(END_OF_THINK, tokenizer) is None:
        message = f"--thinking-token-budget {budget}: the tokenizer has no {END_OF_THINK}"
        raise ValueError(message)
    if options.template is None:
        return tokenizer
    text, origin = options.template
    return replace(tokenizer, template=compile_template(text, origin), template_text=text)


def set_up_images(
    options: ImageOptions, vision: VisionModel | None, owner: ExitStack
) -> ImageReader | NoImages:
    """Return the reader of request images, or a `NoImages` that refuses them.

    `owner` ends the sandbox in which images are decoded.
    """
    if vision is not None:
        fetcher = Fetcher(options.domains, options.max_bytes, Threads("names", FETCHES).run)
        quick, slow = Threads("quick images", QUICK_SLOTS), Threads("slow images", SLOW_SLOTS)
        sandbox = owner.enter_context(Sandbox("serve.images.decode_process"))
        decoder = ImageDecoder(options, sandbox, quick.run, slow.run)
        run = Threads("images", READING).run
        return ImageReader(vision.config, options, run, fetcher, decoder)
    if options.loads_vision:
        return NoImages()
    flag = "--language-model-only" if options.language_model_only else LIMIT
    return NoImages(f"this server takes no images ({flag})")
