"""Conditions of an accept length with images; published numbers do not share them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from eagle3_jax.config.vision import VisionConfig
from eagle3_tools.bench.acceptance.tasks import Task
from serve.images.options import ImageOptions

REFERENCE = (
    "MMStar, 200 questions: 2.597 at k = 3, the card of lightseekorg/kimi-k2.5-eagle3-mla, which "
    "gives neither prompt, template nor limits"
)
WRITTEN, WITHOUT_OPTIONS = "as written", 'cut before "Options:"'


@dataclass(frozen=True)
class PictureTerms:
    """Conditions of a measurement with images. None: set by the server and unknown here.

    `draft_embedding` is the draft's input at image positions (`--mm-draft-embedding`),
    `chat_template` the SHA-256 of the template, `most_patches` the size that an image is shrunk to,
    `most_tokens` the limit of an image; `max_pixels` and `max_bytes` are the limits of a file.
    """

    pictures: int
    question: str
    max_tokens: int
    draft_embedding: str | None = None
    chat_template: str | None = None
    thinking: str = "the template's own default"
    most_patches: int | None = None
    most_tokens: int | None = None
    max_pixels: int | None = None
    max_bytes: int | None = None
    reference: str = REFERENCE

    def sentence(self) -> str:
        """Return the conditions that a reader of a table needs."""
        told = [f"{self.pictures} pictures, question {self.question}"]
        told += [f"draft sees {self.draft_embedding}"] if self.draft_embedding else []
        told += [f"template {self.chat_template[:12]}"] if self.chat_template else []
        told += [f"at most {self.most_patches} patches a picture"] if self.most_patches else []
        told += [f"{self.max_tokens} tokens an answer, thinking: {self.thinking}"]
        return "; ".join(told)


def count_pictures(tasks: Sequence[Task]) -> int:
    """Return the number of images in the first messages of these tasks."""
    contents = (message.get("content") for task in tasks for message in task.messages)
    lists = (content for content in contents if isinstance(content, list))
    return sum(part.get("type") == "image_url" for parts in lists for part in parts)


def terms_here(
    terms: PictureTerms,
    draft_embedding: str,
    template: str | None,
    config: VisionConfig,
    options: ImageOptions,
) -> PictureTerms:
    """Return `terms` with the values of a pair in this process."""
    return replace(
        terms,
        draft_embedding=draft_embedding,
        chat_template=sha256((template or "").encode()).hexdigest(),
        most_patches=config.pixels.in_patch_limit,
        most_tokens=config.most_image_tokens,
        max_pixels=options.max_pixels,
        max_bytes=options.max_bytes,
    )
