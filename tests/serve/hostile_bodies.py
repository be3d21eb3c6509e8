"""Bodies that make a server work, and whether others notice: `make prove-server` posts them all.

CLIENTS clients post a body at once, one streams, another asks for /health. Exit status 0: no
answer but 200, 400, 404, 413 and 429, nobody waited for /health above HEALTH_S, nor above TOKEN_S
for the next token of a stream that had begun.
"""

import argparse
import json
import math
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from fuzz_server import demo_server
from hostile_answers import BODIES as OF_ANSWERS
from hostile_messages import BODIES as OF_MESSAGES
from hostile_responses import BODIES as OF_RESPONSES
from long_bodies import LIMIT, MESSAGE, full, keys, text

CLIENTS = 16
HEALTH_S = 0.5
TOKEN_S = 1.0
PATIENCE_S = 300.0
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
TOKENIZE, DETOKENIZE, NATIVE = "/tokenize", "/detokenize", "/generate"
PRIVATE = "".join(map(chr, range(0xF0000, 0xFFFFE)))


def chat(rest: str, size: int = LIMIT, item: str = '"<|a"') -> bytes:
    """A chat with a list of `item`s in one of its fields."""
    return full(f'{{"messages":[{MESSAGE}],{rest}[', item, "]}}", size)


def message(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi"} | fields]}).encode()


BODIES: Mapping[str, tuple[str, Callable[[], bytes]]] = {
    "all private-use characters": (CHAT, lambda: message(content=PRIVATE)),
    "private-use, short": (CHAT, lambda: message(content=PRIVATE[:-1])),
    "prompt of <|": (COMPLETIONS, lambda: text('{"prompt":"', "<|", '"}')),
    "prompt of words": (COMPLETIONS, lambda: text('{"prompt":"', "hello world ", '"}')),
    "prompt of escapes": (COMPLETIONS, lambda: text('{"prompt":"', "\\u4e2d", '"}')),
    "prompt of commas": (COMPLETIONS, lambda: text('{"prompt":"', ",[", '"}')),
    "many prompts": (COMPLETIONS, lambda: full('{"prompt":[', '"a"', "]}")),
    "many empty prompts": (COMPLETIONS, lambda: full('{"prompt":[', "[]", "]}")),
    "many empty prompts, fewer": (COMPLETIONS, lambda: full('{"prompt":[', "[]", "]}", 175_000)),
    "many prompts that fit": (
        COMPLETIONS,
        lambda: full('{"max_tokens":1,"prompt":[', '"' + "hello world " * 100 + '"', "]}", 2**17),
    ),
    "prompt of ids": (COMPLETIONS, lambda: full('{"prompt":[', "1", "]}")),
    "prompt of ids, fewer": (COMPLETIONS, lambda: full('{"prompt":[', "1", "]}", 2_000_000)),
    "many lists of ids": (COMPLETIONS, lambda: full('{"prompt":[', "[1]", "]}", 250_000)),
    "objects for ids": (COMPLETIONS, lambda: full('{"prompt":[', "{}", "]}", 175_000)),
    "long numbers": (COMPLETIONS, lambda: full('{"prompt":[', "1" * 4299, "]}")),
    "one long number": (COMPLETIONS, lambda: text('{"prompt":1.', "1", "}")),
    "nested": (COMPLETIONS, lambda: text('{"prompt":', "[", "")),
    "quotes": (COMPLETIONS, lambda: text('{"prompt":', '"', "")),
    "keys": (COMPLETIONS, lambda: keys('{"prompt":"a",', lambda i: f"k{i}", 1_000_000, "}")),
    "keys, fewer": (COMPLETIONS, lambda: keys('{"prompt":"a",', lambda i: f"k{i}", 60_000, "}")),
    "bad_words": (COMPLETIONS, lambda: full('{"prompt":"a","bad_words":[', '"word"', "]}")),
    "bad_words, fewer": (
        COMPLETIONS,
        lambda: full('{"prompt":"a","bad_words":[', '"word"', "]}", 3_500_000),
    ),
    "a long bad word": (COMPLETIONS, lambda: text('{"prompt":"a","bad_words":["', "word", '"]}')),
    "stop": (COMPLETIONS, lambda: full('{"prompt":"a","stop":[', '"word"', "]}", 3_500_000)),
    "a long stop": (COMPLETIONS, lambda: text('{"prompt":"a","stop":"', "word", '"}')),
    "stop_token_ids": (
        COMPLETIONS,
        lambda: full('{"prompt":"a","stop_token_ids":[', "1", "]}", 2_000_000),
    ),
    "allowed_token_ids": (
        COMPLETIONS,
        lambda: full('{"prompt":"a","n":128,"allowed_token_ids":[', "1", "]}", 2_000_000),
    ),
    "allowed_token_ids that fit": (
        COMPLETIONS,
        lambda: full('{"prompt":"a","allowed_token_ids":[', "1", "]}", 1_000_000),
    ),
    "logit_bias": (
        COMPLETIONS,
        lambda: keys('{"prompt":"a","logit_bias":{', str, 60_000, "}}"),
    ),
    "logit_bias of one hash": (
        COMPLETIONS,
        lambda: keys('{"prompt":"a","logit_bias":{', lambda i: f"{i * (2**61 - 1)}", 50_000, "}}"),
    ),
    "logit_bias of words": (
        COMPLETIONS,
        lambda: keys('{"prompt":"a","logit_bias":{', lambda i: f"k{i}", 60_000, "}}"),
    ),
    "cache_salt": (COMPLETIONS, lambda: text('{"prompt":"a","n":128,"cache_salt":"', "a", '"}')),
    "model": (COMPLETIONS, lambda: text('{"prompt":"a","model":"', "a", '"}')),
    "messages": (CHAT, lambda: full('{"messages":[', MESSAGE, "]}")),
    "messages, fewer": (CHAT, lambda: full('{"messages":[', MESSAGE, "]}", 450_000)),
    "a long message": (CHAT, lambda: text('{"messages":[{"role":"user","content":"', "<|", '"}]}')),
    "parts of a message": (
        CHAT,
        lambda: full(
            '{"messages":[{"role":"user","content":[', '{"type":"text","text":"a"}', "]}]}", 2**21
        ),
    ),
    "fields of a message": (
        CHAT,
        lambda: keys('{"messages":[{"role":"user",', lambda i: f"k{i}", 60_000, "}]}"),
    ),
    "arguments": (
        CHAT,
        lambda: message(tool_calls=[{"function": {"arguments": f'{{"a":[{"[]," * 2**21}1]}}'}}]),
    ),
    "tools": (
        CHAT,
        lambda: chat('"tools":', 2**22, '{"type":"function","function":{"name":"f"}}')[:-1],
    ),
    "a long tool": (
        CHAT,
        lambda: full(
            f'{{"messages":[{MESSAGE}],"tools":[{{"type":"function","function":{{"name":"f",'
            '"parameters":{"enum":[',
            '"a"',
            "]}}}]}",
            2**22,
        ),
    ),
    "chat_template_kwargs, 1 MiB": (CHAT, lambda: chat('"chat_template_kwargs":{"a":', 2**20)),
    "chat_template_kwargs, 8 MiB": (CHAT, lambda: chat('"chat_template_kwargs":{"a":', 2**23)),
    "chat_template_kwargs": (CHAT, lambda: chat('"chat_template_kwargs":{"a":')),
    "chat_template_kwargs of one text": (
        CHAT,
        lambda: text(f'{{"messages":[{MESSAGE}],"chat_template_kwargs":{{"a":"', "<|", '"}}'),
    ),
    "tokenize": (TOKENIZE, lambda: text('{"return_token_strs":true,"prompt":"', "<|", '"}')),
    "tokenize, shorter": (
        TOKENIZE,
        lambda: text('{"return_token_strs":true,"prompt":"', "<|", '"}', 20_000),
    ),
    "tokenize a chat": (
        TOKENIZE,
        lambda: chat('"return_token_strs":true,"chat_template_kwargs":{"a":', 2**21),
    ),
    "detokenize": (DETOKENIZE, lambda: full('{"tokens":[', "1", "]}")),
    "detokenize, fewer": (DETOKENIZE, lambda: full('{"tokens":[', "1", "]}", 2_000_000)),
    "detokenize words": (DETOKENIZE, lambda: full('{"tokens":[', '"a"', "]}", 4_000_000)),
    "native texts": (NATIVE, lambda: full('{"text":[', '"a"', "]}", 4_000_000)),
    "native ids": (NATIVE, lambda: full('{"input_ids":[', "[1]", "]}", 250_000)),
    "native options": (
        NATIVE,
        lambda: full('{"text":["a"],"sampling_params":[', "{}", "]}", 175_000),
    ),
    "native options that fit": (
        NATIVE,
        lambda: full('{"text":["a"],"sampling_params":[', "{}", "]}", 45_000),
    ),
    "native names": (NATIVE, lambda: full('{"text":["a"],"rid":[', '"a"', "]}", 4_000_000)),
    **{f"responses: {name}": (RESPONSES, make) for name, make in OF_RESPONSES.items()},
    **{f"messages: {name}": (MESSAGES, make) for name, make in OF_MESSAGES.items()},
    **{f"answers: {name}": sent for name, sent in OF_ANSWERS.items()},
    "profile": ("/start_profile", lambda: full('{"a":[', "[]", "]}")),
}
"""What it is: where it goes, and how it is made."""


class Waited(NamedTuple):
    """The longest times that others waited, in seconds."""

    health: float
    token: float


class Others:
    """A client that streams and one that asks for /health, in a process beside who posts."""

    def __init__(self, url: httpx.URL) -> None:
        context = multiprocessing.get_context("spawn")
        self._longest: Any = context.Array("d", 2)
        self._since: Any = context.Array("d", [math.inf] * 2)
        self._end = context.Event()
        given = str(url), self._longest, self._since, self._end
        self._process = context.Process(target=_ask_and_stream, args=given, daemon=True)

    @property
    def seen(self) -> Waited:
        """Since the last reset, with what they wait for right now."""
        now = time.monotonic()
        pairs = zip(self._longest, self._since, strict=True)
        return Waited(*(max(longest, now - since) for longest, since in pairs))

    def reset(self) -> None:
        """Forgets the longest times."""
        self._longest[:] = [0.0, 0.0]

    @contextmanager
    def running(self) -> Iterator["Others"]:
        """Both, within the block. Raises RuntimeError where one of them failed."""
        self._process.start()
        try:
            while not self._longest[0] and self._process.is_alive():
                time.sleep(0.01)
            yield self
        finally:
            self._end.set()
            self._process.join()
        if self._process.exitcode:
            raise RuntimeError("a client beside those who post failed, as it said above")


def _ask_and_stream(url: str, longest: Any, since: Any, end: Any) -> None:
    """Notes under 0 what /health takes, under 1 what the next token of a stream takes."""

    def waited(kind: int) -> None:
        now = time.monotonic()
        longest[kind] = max(longest[kind], now - since[kind])
        since[kind] = now

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            while not end.wait(0.02):
                since[0] = time.monotonic()
                assert http.get("/health").status_code == 200
                waited(0)
                since[0] = math.inf

    def stream() -> None:
        body = {"prompt": "a", "max_tokens": 150, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            while not end.is_set():
                with http.stream("POST", COMPLETIONS, json=body) as answer:
                    assert answer.status_code == 200
                    for _ in answer.iter_lines():
                        waited(1)
                since[1] = math.inf

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(ask), pool.submit(stream)]:
            running.result()


def post(url: httpx.URL, name: str, others: Others, clients: int = 1) -> tuple[set[int], float]:
    """Posts a body, so many clients at once; the statuses and the seconds until all were there."""
    path, make = BODIES[name]
    body = make()
    headers = {"content-type": "application/json"}

    def send(_: int) -> int:
        asked = httpx.stream(
            "POST", url.join(path), content=body, headers=headers, timeout=PATIENCE_S
        )
        with asked as answer:
            for _piece in answer.iter_raw():
                pass
        return answer.status_code

    others.reset()
    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        statuses = set(pool.map(send, range(clients)))
    seconds = time.monotonic() - began
    return statuses, seconds


def main() -> int:
    """Returns 0 if nobody waited too long for anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""], help="parts of the names of bodies")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    flags = parser.parse_args()
    failed = []
    with demo_server(Path("hostile_bodies.log")) as (url, _), Others(url).running() as others:
        time.sleep(1.0)
        print(f"{'status':>6} {'seconds':>8} {'/health':>8} {'token':>8}  body")
        for name in [name for name in BODIES if any(part in name for part in flags.names)]:
            statuses, seconds = post(url, name, others, flags.clients)
            seen, status = others.seen, "/".join(map(str, sorted(statuses)))
            print(
                f"{status:>6} {seconds:8.3f} {seen.health:8.3f} {seen.token:8.3f}  {name}",
                flush=True,
            )
            late = seen.health > HEALTH_S or seen.token > TOKEN_S
            if late or not statuses <= {200, 400, 404, 413, 429}:
                failed.append(name)
    print("failed:", ", ".join(failed) or "none")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
