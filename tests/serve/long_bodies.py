"""Bodies that make a server work: long ones, and those that ask for large answers."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

LIMIT = 16 * 2**20
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES, TOKENIZE, DETOKENIZE = "/v1/messages", "/tokenize", "/detokenize"
NATIVE = "/generate"
Make = Callable[[], bytes]
HI = [{"role": "user", "content": "hi"}]
PRIVATE = "".join(map(chr, range(0xF0000, 0xFFFFE)))


def many(template: str, size: int = LIMIT) -> Make:
    """A body of `size` bytes: «item» is there as often as fits, with commas between, and ¦text¦
    without. HI is a message.
    """

    def make() -> bytes:
        head, item, tail = re.split("[«»¦]", template.replace("HI", json.dumps(HI[0])))
        comma = "," if "«" in template else ""
        count = (size - len(head) - len(tail)) // (len(item) + len(comma))
        return (head + comma.join([item] * count) + tail).encode()

    return make


def keys(template: str, count: int, name: Callable[[int], str] = "k{}".format) -> Make:
    """A body with so many fields in the place of …."""
    return lambda: template.replace(
        "…", ",".join(f'"{name(i)}":1' for i in range(1, count))
    ).encode()


def written(**fields: Any) -> Make:
    return lambda: json.dumps(fields).encode()


def told(**fields: Any) -> Make:
    return lambda: json.dumps({"messages": [HI[0] | fields]}).encode()


def answered(block: str) -> Make:
    said = f'{{"messages":[{{"role":"assistant","content":[{block}]}},HI],"max_tokens":1}}'
    return lambda: said.replace("HI", json.dumps(HI[0])).encode()


CALL = '{"type":"tool_use","id":"a","name":"b","input":%s}'
USER = '{"messages":[{"role":"user","content":[«%s»]}],"max_tokens":1}'
ANSWER = '{"messages":[{"role":"assistant","content":[«%s»]},HI],"max_tokens":1}'
LONG_BLOCK = USER.replace("«%s»", '{"type":"text","text":"¦<|¦"}')
TEXT = '{"type":"text","text":"a"}'
RESULT = '{"type":"tool_result","tool_use_id":"a","content":"a"}'
KWARGS = '{"messages":[HI],"chat_template_kwargs":{"a":[«"<|a"»]}}'
THOUGHT = '{"max_output_tokens":1,"input":[{"type":"reasoning","'
UNSEEN = '"},{"role":"assistant","content":"b"},HI]}'
"""Behind reasoning that templates leave out."""
HIDDEN = '{"input":"a","max_output_tokens":1,"tool_choice":"none","tools":[{"type":"function",'
LONG_BODIES: Mapping[str, Mapping[str, Make]] = {
    COMPLETIONS: {
        "prompt of <|": many('{"prompt":"¦<|¦"}'),
        "prompt of words": many('{"prompt":"¦hello world ¦"}'),
        "prompt of escapes": many('{"prompt":"¦\\u4e2d¦"}'),
        "prompt of commas": many('{"prompt":"¦,[¦"}'),
        "many prompts": many('{"prompt":[«"a"»]}'),
        "many empty prompts": many('{"prompt":[«[]»]}'),
        "many empty prompts, fewer": many('{"prompt":[«[]»]}', 175_000),
        "many prompts that fit": many(
            f'{{"max_tokens":1,"prompt":[«"{"hello world " * 100}"»]}}', 2**17
        ),
        "prompt of ids": many('{"prompt":[«1»]}'),
        "prompt of ids, fewer": many('{"prompt":[«1»]}', 2_000_000),
        "many lists of ids": many('{"prompt":[«[1]»]}', 250_000),
        "objects for ids": many('{"prompt":[«{}»]}', 175_000),
        "long numbers": many(f'{{"prompt":[«{"1" * 4299}»]}}'),
        "one long number": many('{"prompt":1.¦1¦}'),
        "nested": many('{"prompt":¦[¦'),
        "quotes": many('{"prompt":¦"¦'),
        "keys": keys('{"prompt":"a",…}', 1_000_000),
        "keys, fewer": keys('{"prompt":"a",…}', 60_000),
        "bad_words": many('{"prompt":"a","bad_words":[«"word"»]}'),
        "bad_words, fewer": many('{"prompt":"a","bad_words":[«"word"»]}', 3_500_000),
        "a long bad word": many('{"prompt":"a","bad_words":["¦word¦"]}'),
        "stop": many('{"prompt":"a","stop":[«"word"»]}', 3_500_000),
        "a long stop": many('{"prompt":"a","stop":"¦word¦"}'),
        "stop_token_ids": many('{"prompt":"a","stop_token_ids":[«1»]}', 2_000_000),
        "allowed_token_ids": many('{"prompt":"a","n":128,"allowed_token_ids":[«1»]}', 2_000_000),
        "allowed_token_ids that fit": many('{"prompt":"a","allowed_token_ids":[«1»]}', 1_000_000),
        "logit_bias": keys('{"prompt":"a","logit_bias":{…}}', 60_000, str),
        "logit_bias of one hash": keys(
            '{"prompt":"a","logit_bias":{…}}', 50_000, lambda i: f"{i * (2**61 - 1)}"
        ),
        "logit_bias of words": keys('{"prompt":"a","logit_bias":{…}}', 60_000),
        "cache_salt": many('{"prompt":"a","n":128,"cache_salt":"¦a¦"}'),
        "model": many('{"prompt":"a","model":"¦a¦"}'),
    },
    CHAT: {
        "all private-use characters": told(content=PRIVATE),
        "private-use, short": told(content=PRIVATE[:-1]),
        "messages": many('{"messages":[«HI»]}'),
        "messages, fewer": many('{"messages":[«HI»]}', 450_000),
        "a long message": many('{"messages":[{"role":"user","content":"¦<|¦"}]}'),
        "parts of a message": many(USER % TEXT, 2**21),
        "fields of a message": keys('{"messages":[{"role":"user",…}]}', 60_000),
        "arguments": told(tool_calls=[{"function": {"arguments": f'{{"a":[{"[]," * 2**21}1]}}'}}]),
        "tools": many(
            '{"messages":[HI],"tools":[«{"type":"function","function":{"name":"f"}}»]}', 2**22
        ),
        "a long tool": many(
            '{"messages":[HI],"tools":[{"type":"function","function":{"name":"f",'
            '"parameters":{"enum":[«"a"»]}}}]}',
            2**22,
        ),
        "chat_template_kwargs, 1 MiB": many(KWARGS, 2**20),
        "chat_template_kwargs, 8 MiB": many(KWARGS, 2**23),
        "chat_template_kwargs": many(KWARGS),
        "chat_template_kwargs of one text": many(
            '{"messages":[HI],"chat_template_kwargs":{"a":"¦<|¦"}}'
        ),
    },
    TOKENIZE: {
        "tokenize": many('{"return_token_strs":true,"prompt":"¦<|¦"}'),
        "tokenize, shorter": many('{"return_token_strs":true,"prompt":"¦<|¦"}', 20_000),
        "tokenize a chat": many(KWARGS.replace("{", '{"return_token_strs":true,', 1), 2**21),
    },
    DETOKENIZE: {
        "detokenize": many('{"tokens":[«1»]}'),
        "detokenize, fewer": many('{"tokens":[«1»]}', 2_000_000),
        "detokenize words": many('{"tokens":[«"a"»]}', 4_000_000),
    },
    NATIVE: {
        "native texts": many('{"text":[«"a"»]}', 4_000_000),
        "native ids": many('{"input_ids":[«[1]»]}', 250_000),
        "native options": many('{"text":["a"],"sampling_params":[«{}»]}', 175_000),
        "native options that fit": many('{"text":["a"],"sampling_params":[«{}»]}', 45_000),
        "native names": many('{"text":["a"],"rid":[«"a"»]}', 4_000_000),
    },
    RESPONSES: {
        "responses: items": many('{"input":[«HI»]}', 3_000_000),
        "responses: items that fit": many('{"input":[«HI»]}', 450_000),
        "responses: items to truncate": many('{"truncation":"auto","input":[«HI»]}', 450_000),
        "responses: parts of an item": many(
            '{"input":[{"role":"user","content":[«{"type":"input_text","text":"a"}»]}]}', 2**21
        ),
        "responses: references": many('{"input":[«{"id":"rs_0_0"}»]}', 240_000),
        "responses: instructions": many('{"input":"a","instructions":"¦<|¦"}'),
        "responses: reasoning that no prompt shows": many(f'{THOUGHT}content":"¦a¦{UNSEEN}'),
        "responses: sealed reasoning": many(f'{THOUGHT}encrypted_content":"text:¦YWFh¦{UNSEEN}'),
        "responses: a tool that no prompt shows": many(
            HIDDEN + '"name":"f","description":"¦a¦"}]}', 2**22
        ),
        "responses: a large tool that no prompt shows": many(
            HIDDEN + '"name":"f","parameters":{"a":[«[]»]}}]}', 175_000
        ),
    },
    MESSAGES: {
        "messages: blocks": many(USER % TEXT),
        "messages: blocks, fewer": many(USER % TEXT, 1_000_000),
        "messages: a long block": many(LONG_BLOCK, 2**23),
        "messages: results": many(USER % RESULT, 1_800_000),
        "messages: results, fewer": many(USER % RESULT, 900_000),
        "messages: calls": many(ANSWER % (CALL % "{}"), 1_000_000),
        "messages: a long input": answered(CALL % f'{{"a":[{"[]," * 100_000}1]}}'),
        "messages: a deep input": answered(CALL % f'{{"a":{"[" * 900}{"]" * 900}}}'),
        "messages: a long signature": answered(
            f'{{"type":"thinking","thinking":"","signature":"text-{"YWFh" * 2**21}"}}'
        ),
        "messages: keys": keys('{"messages":[{"role":"user","content":"a",…}]}', 60_000),
        "messages: tools": many(
            '{"max_tokens":1,"messages":[HI],"tools":[«{"name":"f","input_schema":{}}»]}', 2**21
        ),
        "messages: stop sequences": many(
            '{"max_tokens":1,"messages":[HI],"stop_sequences":[«"word"»]}', 3_500_000
        ),
    },
    "/start_profile": {"profile": many('{"a":[«[]»]}')},
}
EACH = {"max_tokens": 8, "ignore_eos": True, "n": 128}
"""128 choices of 8 tokens: an engine generates them for 16 clients within seconds."""
TOLD = {"return_token_ids": True, "token_origins": True}
WORDS = "hello world " * 15
TOP = {"messages": HI, "logprobs": True, "top_logprobs": 20, **EACH}
OWN: dict[str, Any] = {
    "text": WORDS,
    "sampling_params": {"n": 16, "max_new_tokens": 64, "ignore_eos": True},
    **{"return_logprob": True, "top_logprobs_num": 20, "logprob_start_len": 0},
}
TOOL = {"type": "function", "name": "f", "description": "d" * 1500}
LARGE_ANSWERS: Mapping[str, tuple[str, Make]] = {
    "answers: a chat's log-probabilities": (CHAT, written(**TOP)),
    "answers: a stream of a chat's log-probabilities": (CHAT, written(**TOP, stream=True)),
    "answers: a completion's log-probabilities": (
        COMPLETIONS,
        written(prompt=WORDS, echo=True, logprobs=20, **EACH | TOLD | {"n": 32}),
    ),
    "answers: prompts' log-probabilities": (
        COMPLETIONS,
        written(prompt=[WORDS] * 64, seed=1, max_tokens=1, prompt_logprobs=20, **TOLD),
    ),
    "answers: native log-probabilities": (NATIVE, written(**OWN)),
    "answers: a stream of native log-probabilities": (NATIVE, written(**OWN, stream=True)),
    "answers: native texts of tokens": (NATIVE, written(**OWN, return_text_in_logprobs=True)),
    "answers: a stream that repeats tools": (
        RESPONSES,
        written(
            input="hi", tools=[TOOL] * 1000, stream=True, tool_choice="none", max_output_tokens=4
        ),
    ),
    "answers: log-probabilities of a response": (
        RESPONSES,
        written(
            input="hi",
            include=["message.output_text.logprobs"],
            top_logprobs=20,
            max_output_tokens=150,
            stream=True,
        ),
    ),
}
BODIES: Mapping[str, tuple[str, Make]] = {
    name: (path, make) for path, bodies in LONG_BODIES.items() for name, make in bodies.items()
} | LARGE_ANSWERS
"""Where each goes, and how it is made."""
