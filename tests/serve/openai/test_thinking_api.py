"""Options about thinking reach the template and the engine, or are refused by name."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from called_tools import prompt_of
from chat_tokenizers import kimi, minimax
from fake_server import Serve, Served, served
from scripted_engine import ScriptedEngine

from convert.text.tokenizer import Tokenizer
from eagle3_jax.sampling.structured_outputs import ThinkingBudget
from serve.chat_format.reader import END_OF_THINK, THINK
from serve.chat_format.reasoning import id_of
from serve.telemetry.logs import warn_once

CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def servers() -> Iterator[Serve]:
    """A server for each tokenizer and budget, which stay."""
    made: dict[Any, Served] = {}
    with ExitStack() as stack:

        def server(make: Callable[[], Tokenizer], budget: int | None = None) -> Served:
            if (make, budget) not in made:
                answers = [make().encode("so</think>well", add_special=True)]
                engine = ScriptedEngine(tokenizer=make(), answers=answers)
                fields = {"tokenizer": make(), "thinking_token_budget": budget}
                made[make, budget] = stack.enter_context(served(engine, **fields))
            return made[make, budget]

        yield server


def post(server: Served, path: str = CHAT, **body: Any) -> Any:
    return server.http.post(path, json={"messages": [{"role": "user", "content": "hi"}], **body})


def budget_of(server: Served, **body: Any) -> ThinkingBudget | None:
    assert post(server, **body).status_code == 200
    return server.engine.asked[-1].sampling.thinking_budget


@pytest.mark.parametrize(
    ("asked", "thinks"),
    [
        ({"reasoning_effort": "none"}, False),
        ({"reasoning_effort": "minimal"}, True),
        ({"reasoning_effort": "high"}, True),
        ({"reasoning": {"effort": "none"}}, False),
        ({"reasoning": {"effort": "low"}}, True),
        ({"reasoning": {"enabled": False}}, False),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, True),
        ({"thinking": {"type": "disabled"}}, False),
        ({"thinking": {"keep": "all"}, "reasoning_effort": "none"}, False),
        ({"thinking": {"budget_tokens": 9}, "reasoning_effort": "high"}, True),
        ({"thinking": {"type": "adaptive"}}, True),
        ({"thinking": True, "chat_template_kwargs": {"thinking": True}}, True),
    ],
)
def test_every_form_turns_the_templates_switch(
    servers: Serve, asked: dict[str, Any], thinks: bool
) -> None:
    server = servers(kimi)
    message = post(server, **asked).json()["choices"][0]["message"]
    assert prompt_of(server).endswith("<think>" if thinks else "<think></think>")
    assert ("reasoning" in message) == thinks
    tokens = post(server, "/tokenize", **asked).json()["tokens"]
    assert tokens == server.engine.asked[-1].prompt_ids


@pytest.mark.parametrize(
    ("make", "asked", "naming"),
    [
        (kimi, {"reasoning_effort": "much"}, "reasoning_effort"),
        (kimi, {"reasoning_effort": "none", "thinking": True}, "contradict"),
        (kimi, {"reasoning_effort": "low", "reasoning": {"effort": "high"}}, "contradict"),
        (kimi, {"thinking": True, "chat_template_kwargs": {"thinking": False}}, "thinking"),
        (kimi, {"thinking_token_budget": 5, "reasoning": {"max_tokens": 6}}, "contradict"),
        (kimi, {"thinking_token_budget": -2}, "thinking_token_budget"),
        (kimi, {"thinking": {"type": "sometimes"}}, "thinking"),
        (kimi, {"reasoning": {"depth": 3}}, "depth"),
        (minimax, {"reasoning_effort": "none"}, "reasoning_effort: this checkpoint has no switch"),
    ],
)
def test_what_contradicts_itself_or_the_checkpoint_is_refused_by_name(
    servers: Serve, make: Any, asked: dict[str, Any], naming: str
) -> None:
    answer = post(servers(make), **asked)
    assert answer.status_code == 400 and naming in answer.json()["error"]["message"]


def test_a_checkpoint_without_thinking_is_asked_for_none(fake: Served) -> None:
    hi = {"messages": [{"role": "user", "content": "hi"}]}
    assert fake.ask(CHAT, **hi, reasoning_effort="none")
    assert "reasoning_effort" in fake.refusal(CHAT, hi | {"reasoning_effort": "low"})["message"]
    for path, body in ((CHAT, hi), ("/v1/completions", {"prompt": "hi"})):
        error = fake.refusal(path, body | {"thinking_token_budget": 3})
        assert "thinking_token_budget" in error["message"]


@pytest.mark.parametrize("make", [kimi, minimax])
def test_levels_of_effort_are_one_to_these_templates_and_the_log_says_so_once(
    servers: Serve, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    server, prompts = servers(make), []
    assert post(server).status_code == 200
    assert "reasoning_effort" not in caplog.text
    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        assert post(server, reasoning_effort=effort).status_code == 200
        prompts.append(server.engine.asked[-1].prompt_ids)
    assert all(prompt == prompts[0] for prompt in prompts)
    assert caplog.text.count("does not read reasoning_effort") == 1


@pytest.mark.parametrize("make", [kimi, minimax])
def test_a_budget_of_any_protocols_name_reaches_the_engine(
    servers: Serve, make: Callable[[], Tokenizer]
) -> None:
    server, tokenizer = servers(make), make()
    section = "<|tool_calls_section_begin|>" if make is kimi else "<minimax:tool_call>"
    ends = [id_of(END_OF_THINK, tokenizer), tokenizer.encode(section, add_special=True)[0]]
    thinking = {"thinking": True} if make is kimi else {}
    expected = ThinkingBudget(7, tuple(end for end in ends if end is not None))
    assert budget_of(server, thinking_token_budget=7, **thinking) == expected
    assert budget_of(server, thinking={"type": "enabled", "budget_tokens": 7}) == expected
    assert budget_of(server, reasoning={"max_tokens": 7}, **thinking) == expected
    assert budget_of(server, **thinking) is None
    defaulting = servers(make, 7)
    assert budget_of(defaulting, **thinking) == expected
    assert budget_of(defaulting, thinking_token_budget=-1) is None
    assert budget_of(defaulting, thinking_token_budget=0, **thinking) == ThinkingBudget(
        0, expected.ends
    )
    off = budget_of(servers(kimi), thinking_token_budget=7, reasoning_effort="none")
    assert off is not None and off.begins == id_of(THINK, kimi()), "the answer may begin to think"


def test_excluded_reasoning_is_not_told(servers: Serve) -> None:
    asked: dict[str, Any] = {"reasoning": {"effort": "high", "exclude": True}}
    message = post(servers(kimi), **asked).json()["choices"][0]["message"]
    assert message["content"] == "well" and "reasoning" not in message
