"""The items of a conversation, in `input` and in stored answers."""

import json
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, model_validator

from convert.text.json_pieces import PIECE_CHARS
from serve.asgi.errors import invalid_option, unsupported_option
from serve.chat_format.call_arguments import text_of
from serve.images.sources import Detail, ImageSource
from serve.openai.content import check_breakpoint, read_detail
from serve.openai.protocol import MAX_NAME_CHARS
from serve.openai.unsupported import INSTEAD_OF_PARTS, MESSAGE, RefusesUnsupported
from serve.responses.unsupported import CALL

TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "refusal")
SEALED = "text:"
"""Prefix of our `encrypted_content`; base64 of the reasoning follows. It hides nothing, as
`content` has it too. It serves clients that send back nothing else."""


def _joined(content: Any) -> Any:
    """Return the text of a content, which may be a list of parts."""
    if not isinstance(content, list):
        return content
    return "".join(map(_part_text, content))


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind not in TEXT_PARTS:
        instead = "send text, and images only in what users say or calls return"
        raise unsupported_option(f"a part of type {str(kind)[:100]!r}", instead, param="input")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise invalid_option("input", f"input: a part of type {kind!r} needs a string as its text")
    check_breakpoint(part, "input")
    return text


class InputText(BaseModel):
    """A part with text."""

    type: Literal["input_text"] = "input_text"
    text: str

    def as_chat(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class InputImage(BaseModel):
    """A part with an image: its URL and level of detail."""

    type: Literal["input_image"] = "input_image"
    image_url: str
    detail: Detail = "auto"

    @property
    def source(self) -> ImageSource:
        return ImageSource(self.image_url, self.detail)

    def as_chat(self) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": self.image_url, "detail": self.detail}}


def _text_or_parts(content: Any) -> Any:
    """Return the parts of a content with images, or the text of a content without."""
    if not isinstance(content, list) or not any(map(_is_image, content)):
        return _joined(content)
    return [_image(p) if _is_image(p) else InputText(text=_part_text(p)) for p in content]


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "input_image"


def _image(part: dict[str, Any]) -> InputImage:
    if part.get("file_id") is not None:
        instead = "no files are kept here: send an image_url"
        raise unsupported_option("file_id of an input_image", instead, param="input")
    if not isinstance(part.get("image_url"), str):
        raise invalid_option(
            "input", "input: a part of type 'input_image' needs a string `image_url`"
        )
    check_breakpoint(part, "input")
    detail = read_detail(part.get("detail"), "input")
    return InputImage(image_url=part["image_url"], detail=detail)


Text = Annotated[str, BeforeValidator(_joined)]
TextOrParts = Annotated[str | list[InputText | InputImage], BeforeValidator(_text_or_parts)]
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]


class MessageItem(RefusesUnsupported):
    """A message. The role developer means system."""

    neutral, instead, within = MESSAGE, INSTEAD_OF_PARTS, "input."

    type: Literal["message"] = "message"
    id: Name | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts

    @model_validator(mode="after")
    def _check_images(self) -> "MessageItem":
        if self.role != "user" and not isinstance(self.content, str):
            message = f"input: only messages of the user have images; one of the {self.role} has"
            raise invalid_option("input", message)
        return self


class ReasoningItem(BaseModel):
    """Reasoning of the model before its text or call."""

    type: Literal["reasoning"] = "reasoning"
    id: Name | None = None
    content: Text | None = None
    encrypted_content: str | None = None

    @model_validator(mode="after")
    def _open(self) -> "ReasoningItem":
        if self.content is None and self.encrypted_content is not None:
            self.content = unsealed(self.encrypted_content)
        self.encrypted_content = None
        return self


class CallItem(RefusesUnsupported):
    """A function call. `arguments` may also be sent as a JSON value; it is stored as JSON text."""

    neutral, within = CALL, "input."

    type: Literal["function_call"] = "function_call"
    id: Name | None = None
    call_id: Name
    name: Name
    namespace: Name | None = None
    arguments: Annotated[str, BeforeValidator(text_of)]


class CallOutputItem(RefusesUnsupported):
    """The result of a function call."""

    neutral, within = CALL, "input."

    type: Literal["function_call_output"] = "function_call_output"
    id: Name | None = None
    call_id: Name
    name: Name | None = None
    namespace: Name | None = None
    output: TextOrParts


class ItemReference(BaseModel):
    """Reference to an item of a stored answer."""

    type: Literal["item_reference"] = "item_reference"
    id: Name


Item = MessageItem | ReasoningItem | CallItem | CallOutputItem
"""An item of a conversation."""
KINDS = ("message", "reasoning", "function_call", "function_call_output", "item_reference")


def _typed(item: Any) -> Any:
    """Return the item with its type, which messages and references may omit."""
    if not isinstance(item, Mapping):
        return item
    kind = item.get("type")
    if kind is None:
        return {**item, "type": "message" if "role" in item else "item_reference"}
    if kind not in KINDS:
        instead = f"there are {', '.join(KINDS)}"
        raise unsupported_option(f"an item of type {str(kind)[:100]!r}", instead, param="input")
    return item


InputItem = Annotated[
    Annotated[Item | ItemReference, Field(discriminator="type")], BeforeValidator(_typed)
]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Annotated[Item, Field(discriminator="type")]])


def read_items(stored: bytes) -> list[Item]:
    """Parse stored items. Python's parser accepts the lone surrogates that it wrote."""
    return ITEMS.validate_python(json.loads(stored))


def sealed(reasoning: str) -> str:
    """Return the reasoning as `encrypted_content`."""
    return SEALED + b64encode(reasoning.encode(errors="replace")).decode()


def unsealed(content: str) -> str:
    """Return the reasoning in an `encrypted_content`; an error if another server made it."""
    try:
        if content.startswith(SEALED):
            held = content.removeprefix(SEALED)
            starts = range(0, len(held), PIECE_CHARS)  # One call blocks other threads.
            pieces = (b64decode(held[i : i + PIECE_CHARS], validate=True) for i in starts)
            return b"".join(pieces).decode()
    except ValueError:
        pass
    message = "input: the encrypted_content of a reasoning item was not made here; leave it out"
    raise invalid_option("input", message)
