"""Every field that Anthropic's types know is obeyed, or refused by its name."""

from typing import Any

import anthropic
import pytest
from anthropic import types
from anthropic.types import (
    beta,
    message_count_tokens_params,
    message_create_params,
    tool_result_block_param,
)
from client_types import kinds, names
from fake_server import Served

from serve.anthropic import blocks, protocol, thinking, tools
from serve.openai.unsupported import KnownFields

PATH = "/v1/messages"
BODY = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1}
HEADERS = {"user_profile_id", "workspace_id", "betas"}
"""What the client sends as headers of theirs."""
ADDED = {"seed", "speculative", "temperature", "top_k", "top_p"}
"""Ours, and three that its last major version has no more, but others have."""
MADE_OF = {
    blocks.TextBlock: types.TextBlockParam,
    blocks.ThinkingBlock: types.ThinkingBlockParam,
    blocks.ToolUseBlock: types.ToolUseBlockParam,
    blocks.ToolResultBlock: types.ToolResultBlockParam,
    blocks.ImageBlock: types.ImageBlockParam,
    blocks.DataSource: types.Base64ImageSourceParam,
    blocks.UrlSource: types.URLImageSourceParam,
    tools.CustomTool: types.ToolParam,
    protocol.OutputConfig: types.OutputConfigParam,
    protocol.Metadata: message_create_params.Metadata,
}


def known(model: type[KnownFields]) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_the_list_of_options_is_the_clients() -> None:
    created = names(
        message_create_params.MessageCreateParams, beta.message_create_params.MessageCreateParams
    )
    counted = names(
        message_count_tokens_params.MessageCountTokensParams,
        beta.message_count_tokens_params.MessageCountTokensParams,
    )
    assert created - HEADERS == (known(protocol.MessagesRequest) | NEUTRAL) - ADDED
    assert counted - HEADERS <= known(protocol.Conversation) | NEUTRAL


NEUTRAL = protocol.NEUTRAL.keys() - {"output_format"}
"""That one is a beta's, which SDKs translate now."""


@pytest.mark.parametrize("model", MADE_OF, ids=lambda model: model.__name__)
def test_the_parts_of_a_body_have_the_clients_fields(model: type[KnownFields]) -> None:
    assert names(MADE_OF[model]) == known(model) | model.neutral.keys()


def refusal(fake: Served, body: dict[str, Any]) -> str:
    error = fake.refusal(PATH, BODY | body)
    assert error["type"] == "invalid_request_error"
    return error["message"]


def test_neutral_values_pass_and_others_are_refused_by_name(fake: Served) -> None:
    for name, values in protocol.NEUTRAL.items():
        assert refusal(fake, {name: "unheard of"}).startswith(f"{name} is not implemented")
        for value in values:
            fake.ask(PATH, **BODY | {name: value})
    assert refusal(fake, {"nobody_knows": 1}).startswith("nobody_knows is not implemented")


def test_fields_of_parts_are_refused_by_name(fake: Served) -> None:
    for name in tools.CustomTool.neutral:
        tool = {"name": "f", "input_schema": {}, name: "unheard of"}
        assert refusal(fake, {"tools": [tool]}).startswith(f"{name} is not implemented")
    for name in blocks.TextBlock.neutral:
        text = {"type": "text", "text": "a", name: "unheard of"}
        assert refusal(fake, {"system": [text]}).startswith(f"{name} is not implemented")


def test_every_kind_of_content_is_read_or_refused_by_name(fake: Served) -> None:
    known_kinds = kinds(types.ContentBlockParam)
    read = {"text", "image", "thinking", "tool_use", "tool_result"}
    assert {"document", "redacted_thinking", "server_tool_use"} | read < known_kinds
    for kind in known_kinds - read:
        for role in ("user", "assistant", "system"):
            turn = {"role": role, "content": [{"type": kind}]}
            assert repr(kind) in refusal(fake, {"messages": [turn]})
    for role in ("assistant", "system"):
        turn = {"role": role, "content": [{"type": "image"}]}
        assert "'image'" in refusal(fake, {"messages": [turn]})
    result = {"type": "tool_result", "tool_use_id": "a"}
    known_kinds = kinds(tool_result_block_param.Content)
    assert {"text", "image", "document"} < known_kinds
    for kind in known_kinds - {"text", "image"}:
        turn = {"role": "user", "content": [result | {"content": [{"type": kind}]}]}
        assert repr(kind) in refusal(fake, {"messages": [turn]})


def test_every_tool_but_the_clients_own_is_refused_by_name(fake: Served) -> None:
    known_kinds = kinds(types.ToolUnionParam)
    assert {"bash_20250124", "web_search_20250305"} < known_kinds
    for kind in known_kinds - {"custom"}:
        assert repr(kind) in refusal(fake, {"tools": [{"type": kind, "name": "a"}]})


def test_every_kind_of_thinking_and_of_choice_is_known(fake: Served) -> None:
    assert kinds(types.ThinkingConfigParam) == kinds(thinking.ThinkingConfig)
    kimis_own = {"keep"}
    assert names(types.ThinkingConfigParam) | kimis_own == known(thinking.ThinkingConfig)
    assert "between_tools" in refusal(fake, {"thinking": {"type": "between_tools"}})
    assert kinds(types.ToolChoiceParam) == kinds(tools.ToolChoice)
    assert names(types.ToolChoiceParam) == known(tools.ToolChoice)


def test_headers_are_known_too(fake: Served) -> None:
    def status(headers: dict[str, str]) -> int:
        return fake.http.post(PATH, json=BODY, headers=headers).status_code

    for version in ("2023-06-01", anthropic._constants.ANTHROPIC_API_VERSION):
        betas = "claude-code-20250219,prompt-caching-2024-07-31"
        assert status({"anthropic-version": version, "anthropic-beta": betas}) == 200
    assert status({}) == 200
    assert status({"anthropic-version": "2023-01-01"}) == 400
    for name in ("anthropic-user-profile-id", "anthropic-workspace-id"):
        assert status({name: "a"}) == 400
