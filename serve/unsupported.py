"""Request options this release does not have, with the values that change nothing.

Silently ignoring an option that would change the answer is worse than refusing it, so anything
outside the neutral values is an error that names the option. Unknown names are ignored: routers
and clients add fields of their own.
"""

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

SHARED: dict[str, tuple[object, ...]] = {
    "length_penalty": (None, 1),
    "use_beam_search": (None, False),
    "logits_processors": (None, []),
    "return_tokens_as_token_ids": (None, False),
    "truncate_prompt_tokens": (None,),
    "skip_special_tokens": (None, True),
    "kv_transfer_params": (None,),
}
COMPLETION = SHARED | {
    "suffix": (None, ""),
    "prompt_embeds": (None,),
}
CHAT = SHARED | {
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "reasoning_effort": (None,),
    "separate_reasoning": (None, True),
    "stream_reasoning": (None, True),
    "continue_final_message": (None, False),
    "add_generation_prompt": (None, True),
    "chat_template": (None,),
    "documents": (None, []),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "prediction": (None,),
    "web_search_options": (None,),
}


def refuse_unsupported(body: Any, neutral: Mapping[str, tuple[object, ...]]) -> None:
    """Raises the error that names the first option of `body` outside its neutral values."""
    if not isinstance(body, Mapping):
        return
    for name, allowed in neutral.items():
        if name in body and body[name] not in allowed:
            raise PydanticCustomError(
                "unsupported_option",
                "{param} is not implemented in this release; leave it out",
                {"param": name},
            )
