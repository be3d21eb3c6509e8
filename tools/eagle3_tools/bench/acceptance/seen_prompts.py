"""Make prompts from conversations with images, in the same way as the server."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convert.text.tokenizer import Tokenizer
from eagle3_tools.bench.acceptance.tasks import ChatMessage
from serve.images.reader import ImageReader, NoImages, Prompt, place
from serve.openai.content import ImagePart, TextPart, read_content, sources_in


@dataclass(frozen=True)
class PromptMaker:
    """Makes prompts from chats. `images` reads images within a server's limits."""

    tokenizer: Tokenizer
    images: ImageReader | NoImages

    def __call__(self, messages: Sequence[ChatMessage], tools: Sequence[Any]) -> Prompt:
        """Apply the chat template and place the images; raise ValueError for a refused image."""
        contents = [read_content(message.get("content")) for message in messages]
        told = [
            {**message, "content": _for_template(content)}
            for message, content in zip(messages, contents, strict=True)
        ]
        ids = self.tokenizer.encode_chat(told, tools=list(tools) or None)
        sources = sources_in(contents)
        if not sources:
            return Prompt(ids)
        found = asyncio.run(self.images.read(sources))
        return place(ids, [found[source] for source in sources], self.images.placeholder)


def _for_template(content: str | list[TextPart | ImagePart] | None) -> Any:
    return [p.for_template() for p in content] if isinstance(content, list) else content
