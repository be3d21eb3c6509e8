"""Random requests of four protocols about text, pictures, tools and grammars."""

import json
import random
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from eagle3_tools.make_demo.pictures.picture import pictures, png

SCHEMA = {
    "type": "object",
    "properties": {"answer": {"type": "integer"}, "sure": {"type": "boolean"}},
    "required": ["answer", "sure"],
    "additionalProperties": False,
}
TOOL = {"name": "add", "description": "Add two numbers"}
PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}
FEATURES = ("text", "image", "tools", "grammar")
REFUSED_SHARE, IMPATIENT_SHARE, STREAMED_SHARE = 0.05, 0.3, 0.7
NUM_PICTURES = 40

Body = dict[str, Any]


@dataclass(frozen=True)
class RandomRequest:
    """A request, before it has the form of a protocol.

    Attributes:
        feature: one of FEATURES.
        image: a PNG file in base64.
        patience: lines of a stream, or tenths of a second, before the client disconnects; None: the
            client reads the whole answer.
    """

    feature: str
    text: str
    image: str
    sampling: Body
    max_tokens: int
    forced: bool
    stream: bool
    patience: int | None

    def content(self, picture: Body, text: Body) -> list[Body]:
        """Return the parts of the user's message: the picture, if there is one, and the text."""
        return [picture, text] if self.feature == "image" else [text]


class RequestSource:
    """Draws requests about these prompts and about pictures of shapes."""

    def __init__(self, prompts: Sequence[str]) -> None:
        drawn = islice(pictures("soak", 0), NUM_PICTURES)
        self._prompts, self._images = prompts, [b64encode(png(p)).decode() for p in drawn]

    def draw(self, rng: random.Random, feature: str | None = None) -> RandomRequest:
        """Draw a request; with `feature`, one that is valid and read to its end."""
        stream = rng.random() < STREAMED_SHARE
        impatient = feature is None and rng.random() < IMPATIENT_SHARE
        refused = feature is None and rng.random() < REFUSED_SHARE
        return RandomRequest(
            feature or rng.choice(FEATURES),
            rng.choice(self._prompts),
            rng.choice(self._images),
            {
                "temperature": -1 if refused else rng.choice((0, 0.6, 1.0)),
                "top_p": rng.choice((1.0, 0.9)),
            },
            rng.randrange(1, 200),
            rng.random() < 0.5,
            stream,
            # The id of a stored response is in the second line of a stream.
            rng.randrange(2, 30) if impatient else None,
        )


def chat_body(drawn: RandomRequest, _: str | None) -> Body:
    picture = {"type": "image_url", "image_url": {"url": _data_url(drawn)}}
    content = drawn.content(picture, {"type": "text", "text": drawn.text})
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": drawn.max_tokens}
    body |= drawn.sampling | {"stream": drawn.stream}
    if drawn.feature == "text":
        body |= {"n": 1 + drawn.forced, "ignore_eos": drawn.forced}
    if drawn.feature == "tools":
        tool = {"type": "function", "function": TOOL | {"parameters": PARAMETERS}}
        body |= {"tools": [tool], "tool_choice": "required" if drawn.forced else "auto"}
    if drawn.feature == "grammar":
        named = {"name": "answer", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": named}
    return body


def messages_body(drawn: RandomRequest, _: str | None) -> Body:
    source = {"type": "base64", "media_type": "image/png", "data": drawn.image}
    content = drawn.content(
        {"type": "image", "source": source}, {"type": "text", "text": drawn.text}
    )
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": drawn.max_tokens}
    body |= drawn.sampling | {"stream": drawn.stream}
    if drawn.feature == "tools":
        choice = {"type": "any" if drawn.forced else "auto"}
        body |= {"tools": [TOOL | {"input_schema": PARAMETERS}], "tool_choice": choice}
    if drawn.feature == "grammar":
        body["output_config"] = {"format": {"type": "json_schema", "schema": SCHEMA}}
    return body


def responses_body(drawn: RandomRequest, previous: str | None) -> Body:
    """Return the body of POST /v1/responses, which continues `previous`."""
    picture = {"type": "input_image", "image_url": _data_url(drawn)}
    content = drawn.content(picture, {"type": "input_text", "text": drawn.text})
    body = {"input": [{"role": "user", "content": content}], "max_output_tokens": drawn.max_tokens}
    body |= drawn.sampling | {"stream": drawn.stream}
    # A client that disconnects before an answer that is not streamed never learns its id.
    body |= {"previous_response_id": previous, "store": drawn.stream or drawn.patience is None}
    if drawn.feature == "tools":
        tool = {"type": "function", "strict": False, **TOOL, "parameters": PARAMETERS}
        body |= {"tools": [tool], "tool_choice": "required" if drawn.forced else "auto"}
    if drawn.feature == "grammar":
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
    return body


def generate_body(drawn: RandomRequest, _: str | None) -> Body:
    """Return the body of POST /generate, which has neither pictures nor tools."""
    sampling = drawn.sampling | {"max_new_tokens": drawn.max_tokens, "ignore_eos": drawn.forced}
    if drawn.feature == "grammar":
        sampling["json_schema"] = json.dumps(SCHEMA)
    return {"text": drawn.text, "sampling_params": sampling, "stream": drawn.stream}


PROTOCOLS: dict[str, Callable[[RandomRequest, str | None], Body]] = {
    "/v1/chat/completions": chat_body,
    "/v1/messages": messages_body,
    "/v1/responses": responses_body,
    "/generate": generate_body,
}
"""Path of each protocol -> its form of a request and of the response that the request continues."""


def _data_url(drawn: RandomRequest) -> str:
    return f"data:image/png;base64,{drawn.image}"
