"""The flags about chat, and what they make of a checkpoint's tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import kimi, minimax
from fake_server import served_by
from oracle_files import ORACLES
from scripted_engine import ScriptedEngine

from serve.chat_format.format import CHAT_FORMATS, KIMI_K2, MINIMAX_M2, choose_reading
from serve.chat_setup import set_up_chat
from serve.cli import main as serve_main
from serve.options.chat import PARSERS, ChatOptions
from serve.options.serve_flags import parse_serve_flags

CHAT = "/v1/chat/completions"
TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role == 'robot' -%}{{ raise_exception('no robots: ' + m.content) }}{%- endif -%}
{{ m.content[1:] if strange else m.content }}
{%- endfor -%}<think>{{ '</think>' if quick }}"""


def chat(*argv: str) -> ChatOptions:
    return parse_serve_flags(["m", *argv])[0].chat


def test_both_engines_names_of_a_parser_are_known() -> None:
    assert chat() == ChatOptions() and PARSERS[2:] == tuple(CHAT_FORMATS)
    vllm = chat("--reasoning-parser", "minimax_m2", "--tool-call-parser", "kimi_k2")
    sglang = chat("--reasoning-parser", "minimax", "--tool-call-parser=kimi-k2")
    assert vllm == sglang == ChatOptions(reasoning_parser="minimax_m2", tool_call_parser="kimi_k2")
    assert chat("--enable-auto-tool-choice").auto_tool_choice is True
    assert chat("--no-enable-auto-tool-choice").auto_tool_choice is False


def test_where_drafts_are_not_coupled_nothing_holds_calls_and_the_start_says_so(
    target_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = {"model": f"{ORACLES / 'draft_mha_bf16'}", "rejection_sample_method": "standard"}
    flags = "--max-num-seqs 1 --max-model-len 128 --port 0 --strict-tools --speculative-config"
    assert serve_main([str(target_directory), *flags.split(), json.dumps(draft)]) == 2
    error = capsys.readouterr().err
    assert "--strict-tools" in error and "coupled drafts" in error


def test_auto_follows_the_tokenizers_marks() -> None:
    for tokenizer, chat_format in ((kimi(), KIMI_K2), (minimax(), MINIMAX_M2)):
        reading = choose_reading(tokenizer)
        assert reading.reasoning is reading.tools is chat_format and reading.auto_tool_choice
        off = choose_reading(tokenizer, "none", "none")
        assert off.reasoning is off.tools is None and not off.auto_tool_choice and not off.marks
        assert not choose_reading(tokenizer, auto_tool_choice=False).auto_tool_choice


@pytest.mark.parametrize(
    ("options", "naming"),
    [
        (ChatOptions(tool_call_parser="minimax_m2"), "the tokenizer has no <minimax:tool_call>"),
        (ChatOptions(reasoning_parser="minimax_m2", tool_call_parser="kimi_k2"), "no model"),
        (ChatOptions(template=("{% if %}", "FILE")), "FILE: the chat template is not valid jinja"),
        (ChatOptions(tool_call_parser="none", auto_tool_choice=True), "needs --tool-call-parser"),
    ],
)
def test_what_does_not_fit_the_tokenizer_is_refused(options: ChatOptions, naming: str) -> None:
    with pytest.raises(ValueError, match=naming):
        set_up_chat(options, kimi())


def test_a_template_file_replaces_the_checkpoints(tmp_path: Path) -> None:
    """Its own errors are 400; its variables come from the flag, then from the request."""
    path = tmp_path / "template.jinja"
    path.write_text(TEMPLATE)
    options = chat("--chat-template", str(path), "--default-chat-template-kwargs", '{"quick": 1}')
    tokenizer = set_up_chat(options, kimi())
    assert tokenizer.template_text == TEMPLATE
    engine = ScriptedEngine(answers=[tokenizer.encode("x</think>y", add_special=True)])
    with served_by(engine, tokenizer, template_kwargs=options.template_kwargs) as server:

        def asking(role: str, **variables: object) -> dict[str, Any]:
            messages = [{"role": role, "content": "hi"}]
            return {"messages": messages, "chat_template_kwargs": variables}

        server.ask(CHAT, **asking("user"))
        server.ask(CHAT, **asking("user", quick=False, strange=True))
        prompts = [tokenizer.decode(request.prompt_ids) for request in engine.asked]
        assert prompts == ["hi<think></think>", "i<think>"]
        assert "no robots: hi" in server.refusal(CHAT, asking("robot"))["message"]
