"""Plans a chat. With truncation, drops the oldest messages of one that is too long."""

from eagle3_jax.engine import Request
from serve.asgi.errors import ApiError
from serve.openai.chat import plan_chat, read_images
from serve.openai.protocol import ChatCompletionRequest
from serve.openai.service import Service

Planned = tuple[tuple[Request, ...], int | None]
TOO_LONG = "context_length_exceeded"


async def plan_truncated(
    service: Service, chat: ChatCompletionRequest, client: str, *, truncates: bool
) -> Planned:
    """Plan a chat like `plan_chat`. With `truncates`, drop old messages of one that is too long.

    As few as possible are dropped, and never an initial system message. The first message kept
    after it is a user message, so that no tool result loses its call.
    """
    images = await read_images(service, chat.messages, client)
    try:
        return await plan_chat(service, chat, images, client=client)
    except ApiError as error:
        if error.code != TOO_LONG or not truncates:
            raise
        too_long = error
    head = 1 if chat.messages[0].role == "system" else 0
    cuts = [i for i, m in enumerate(chat.messages) if i > head and m.role == "user"]
    fewest, most = 0, len(cuts)
    planned: Planned | None = None
    while fewest < most:
        middle = (fewest + most) // 2
        kept = [*chat.messages[:head], *chat.messages[cuts[middle] :]]
        shorter = chat.model_copy(update={"messages": kept})
        try:
            planned, most = await plan_chat(service, shorter, images, client=client), middle
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            fewest = middle + 1
    if planned is None:
        raise too_long
    return planned
