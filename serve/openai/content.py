"""Message contents: text, or a list of text and image parts."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel

from serve.asgi.errors import ApiError, invalid_option, invalid_request
from serve.images.errors import BadImage, ImagesBusy, NoneTaken
from serve.images.sources import Detail, ImageSource

TEXT, IMAGE = "text", "image_url"
SEE = ("user", "tool")
"""Roles whose messages may have images."""
REFUSED = ("uuid", "max_dynamic_patch", "min_dynamic_patch")
"""Image fields of other servers that this one does not support."""
BREAKPOINT = "prompt_cache_breakpoint"
"""A part's field without effect: every full page of a prompt is cached and shared anyway."""


class TextPart(BaseModel):
    """A part with text."""

    type: Literal["text"] = "text"
    text: str

    def for_template(self) -> dict[str, Any]:
        return {"type": "text", "text": self.text}


class ImageURL(BaseModel):
    """An image's URL, and its level of detail."""

    url: str
    detail: Detail = "auto"


class ImagePart(BaseModel):
    """A part with an image."""

    type: Literal["image_url"] = "image_url"
    image_url: ImageURL

    @property
    def source(self) -> ImageSource:
        return ImageSource(self.image_url.url, self.image_url.detail)

    def for_template(self) -> dict[str, Any]:
        """Return the part as chat templates read it. They do not look at the image."""
        return {"type": "image"}


Content = str | list[TextPart | ImagePart]


def read_content(content: Any) -> Any:
    """Return the parts of a content, or one text if all parts are text."""
    if not isinstance(content, list):
        return content
    parts = [_part(part) for part in content]
    if any(isinstance(part, ImagePart) for part in parts):
        return parts
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def _part(part: Any) -> TextPart | ImagePart:
    if isinstance(part, TextPart | ImagePart):
        return part
    if isinstance(part, str):
        return TextPart(text=part)
    kind = part.get("type") if isinstance(part, dict) else type(part).__name__
    if kind in (TEXT, IMAGE):
        check_breakpoint(part, "messages")
    if kind == IMAGE:
        return ImagePart(image_url=_image_url(part))
    if kind != TEXT:
        message = (
            f"messages: a content part must be of type {TEXT} or {IMAGE}; {kind!r:.100} is not "
            "implemented"
        )
        raise invalid_option("messages", message)
    if not isinstance(part.get("text"), str):
        raise invalid_option("messages", "messages: a part of type text needs a string `text`")
    return TextPart(text=part["text"])


def _image_url(part: dict[str, Any]) -> ImageURL:
    given = part.get("image_url")
    fields = {"url": given} if isinstance(given, str) else given
    if not isinstance(fields, dict) or not isinstance(fields.get("url"), str):
        message = (
            "messages: a part of type image_url needs an object `image_url` with a string `url`"
        )
        raise invalid_option("messages", message)
    for name in REFUSED:
        if part.get(name) is not None or fields.get(name) is not None:
            message = f"image_url: {name} is not implemented in this release; leave it out"
            raise invalid_option("messages", message)
    return ImageURL(url=fields["url"], detail=read_detail(fields.get("detail"), "messages"))


def check_breakpoint(part: dict[str, Any], param: str) -> None:
    """Check OpenAI's mark of the end of a cached prefix. Raises an error if it is not an object."""
    if not isinstance(part.get(BREAKPOINT), dict | None):
        message = f'{BREAKPOINT} must be an object such as {{"mode": "explicit"}}'
        raise invalid_option(param, message)


def read_detail(given: Any, param: str) -> Detail:
    """Return OpenAI's `detail`, or "auto" if it is missing."""
    if given is None:
        return "auto"
    for known in get_args(Detail):
        if given == known:
            return known
    known = ", ".join(get_args(Detail))
    raise invalid_option(param, f"detail of an image must be one of {known}; got {given!r:.100}")


def sources_in(contents: Sequence[Content | None]) -> list[ImageSource]:
    """Return the images of these contents, in order."""
    lists = [content for content in contents if isinstance(content, list)]
    return [part.source for parts in lists for part in parts if isinstance(part, ImagePart)]


def as_errors(error: BadImage | ImagesBusy) -> ApiError:
    if isinstance(error, ImagesBusy):
        return ApiError(429, str(error), code="queue_full", headers={"Retry-After": "1"})
    code = "unsupported_option" if isinstance(error, NoneTaken) else "invalid_image"
    return invalid_request(f"messages: {error}", param="messages", code=code)
