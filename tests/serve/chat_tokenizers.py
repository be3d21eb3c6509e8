"""Tokenizers with the marks of both chat formats: the demo's, and one in MiniMax's form."""

from dataclasses import replace
from functools import cache
from itertools import count

from convert.text.chat_template import compile_template
from convert.text.tiktoken_file import SpecialToken
from convert.text.tokenizer import Tokenizer, load_tokenizer
from serve.demo import demo_target_dir

MINIMAX_MARKS = ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>")
MINIMAX_ENDS = ("]~!b[", "]~b]", "[e~[")
MINIMAX_TEMPLATE = """\
{%- if tools -%}]~!b[]~b]system\n{{ tools | tojson }}[e~[\n{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}]~b]ai
{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif -%}
{{- m.content or '' -}}
{%- if m.tool_calls -%}{{- '\n' -}}<minimax:tool_call>{{- '\n' -}}
{%- for call in m.tool_calls -%}
<invoke name="{{ call.function.name }}">{{- '\n' -}}
{%- for key, value in call.function.arguments.items() -%}
<parameter name="{{ key }}">{{ value if value is string else value | tojson }}</parameter>
{{- '\n' -}}
{%- endfor -%}
</invoke>{{- '\n' -}}
{%- endfor -%}
</minimax:tool_call>{%- endif -%}
{%- else -%}]~b]{{ m.role }}\n{{ m.content }}{%- endif -%}[e~[{{- '\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}]~b]ai\n<think>\n{% endif -%}
"""


@cache
def kimi() -> Tokenizer:
    """Kimi's marks and template over the demo's ranks."""
    return load_tokenizer(demo_target_dir())


@cache
def minimax() -> Tokenizer:
    """MiniMax's marks over the same ranks, with a template in the form its guide shows."""
    ids = count(kimi().codec.vocab_size)
    marks = [SpecialToken(next(ids), text, False) for text in MINIMAX_MARKS]
    ends = [SpecialToken(next(ids), text) for text in MINIMAX_ENDS]
    ids_alone = replace(kimi(), special_tokens=(*marks, *ends), eos_token_ids=(ends[-1].token_id,))
    return with_template(ids_alone, MINIMAX_TEMPLATE)


def with_template(tokenizer: Tokenizer, text: str) -> Tokenizer:
    """The tokenizer with another chat template."""
    template = compile_template(text, "the test's template")
    return replace(tokenizer, template=template, template_text=text)


TOKENIZERS = {"kimi_k2": kimi, "minimax_m2": minimax}
