"""Unsupported options of Responses, and misplaced options of chats, with their neutral values."""

from serve.openai.unsupported import INSTEAD, SHARED

RESPONSE = SHARED | {
    "access_programs": (None,),
    "background": (None, False),
    "background_options": (None,),
    "context_management": (None, []),
    "conversation": (None,),
    "image": (None,),
    "moderation": (None,),
    "prompt": (None,),
    "prompt_cache_options": (None, {}, {"mode": "implicit"}),
    "prompt_cache_retention": (None, "in_memory"),
    "service_tier": (None, "auto", "default"),
    "best_of": (None, 1),
    "logprobs": (None, False),
    "max_completion_tokens": (None,),
    "max_tokens": (None,),
    "messages": (None,),
    "n": (None, 1),
    "prompt_logprobs": (None,),
    "reasoning_effort": (None,),
    "response_format": (None,),
    "return_token_ids": (None, False),
    "token_origins": (None, False),
}
REASONING = {
    "context": (None, "auto"),
    "generate_summary": (None, "auto"),
    "mode": (None, "standard"),
    "summary": (None, "auto"),
}
TOOL = {
    "allowed_callers": (None, ["direct"]),
    "async": (None, False),
    "defer_loading": (None, False),
    "output_schema": (None,),
}
CALL = {"async": (None, False), "caller": (None, {"type": "direct"})}
INSTEAD_HERE = INSTEAD | {
    "background": "keep the connection open, or stream",
    "context_management": 'truncation "auto" drops the oldest messages',
    "conversation": "previous_response_id continues a response",
    "prompt": "send the prompt's text as instructions and input",
    "logprobs": "include message.output_text.logprobs",
    "max_completion_tokens": "use max_output_tokens",
    "max_tokens": "use max_output_tokens",
    "messages": "use input",
    "n": "ask again for another answer",
    "reasoning_effort": "use reasoning.effort",
    "response_format": "use text.format",
    "generate_summary": "the reasoning itself is in the item's content",
    "summary": "the reasoning itself is in the item's content",
}
