"""Chat templates that read what the published ones of Kimi-K2.5, K2.6 and K2.7-Code read.

They differ in the switches, in the field that reasoning is read from and in whose turns it is kept.
The texts are ours.
"""

from functools import cache

from chat_tokenizers import kimi, with_template

from convert.text.tokenizer import Tokenizer

TEMPLATE = """\
{%- macro thought(m) -%}REASONING{%- endmacro -%}
{%- set plain = namespace(last=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and not m.get('tool_calls') -%}
{%- set plain.last = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|im_user|>{%- elif m.role == 'assistant' -%}<|im_assistant|>
{%- else -%}<|im_system|>{%- endif -%}
{{- m.get('name') or m.role -}}<|im_middle|>
{%- if m.role == 'assistant' -%}
<think>{%- if KEPT -%}{{ thought(m) }}{%- endif -%}</think>{{ m.content or '' }}
{%- if m.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for call in m.tool_calls -%}
{%- set given = call.function.arguments -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{{- given if given is string else given | tojson -}}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>{%- endif -%}
{%- elif m.role == 'tool' -%}## Return of {{ m.tool_call_id }}{{ '\\n' }}{{ m.content }}
{%- else -%}{{ m.content or '' }}{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|><think>SWITCH{%- endif -%}
"""
ONE_FIELD = "{{ m.get('reasoning_content', '') }}"
TWO_FIELDS = "{{ m.reasoning if 'reasoning' in m else m.get('reasoning_content', '') }}"
SWITCH = "{%- if thinking is defined and thinking is false -%}</think>{%- endif -%}"
BEHIND = "loop.index0 > plain.last"
PARTS = {
    "K2.5": (ONE_FIELD, BEHIND, SWITCH),
    "K2.6": (TWO_FIELDS, f"({BEHIND} or preserve_thinking is true)", SWITCH),
    "K2.7-Code": (TWO_FIELDS, "true", ""),
}


@cache
def kimi_like(name: str) -> Tokenizer:
    """The demo's tokenizer with the template in the shape of this release's."""
    text = TEMPLATE
    for place, part in zip(("REASONING", "KEPT", "SWITCH"), PARTS[name], strict=True):
        text = text.replace(place, part)
    return with_template(kimi(), text)
