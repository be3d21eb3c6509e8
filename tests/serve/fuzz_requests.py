"""Requests that no client should send: a seeded stream of them, from the server's own OpenAPI."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from long_bodies import LARGE_ANSWERS

Manner = Literal["whole", "slow", "vanishes", "half"]
"""How it is sent: at once, in trickles, by a client that goes once it is sent, or half of it."""

NUMBERS = [0, 1, -1, 2, 63, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]
NUMBERS += [0.0, -0.0, 1e-9, 0.5, 1e308, -1e308, float("nan"), float("inf")]
TEXTS = ["", " ", "a", "\0", "\ud800", "\u202e", "é" * 50, "a" * 5000, " " * 5000, "%s{}"]
TEXTS += ["<|im_end|>", "file:///etc/passwd", "/etc/passwd", "../../etc/passwd"]
TEXTS += ["http://127.0.0.1:1/", "data:,x"]
LISTS = [[], [[]], [""], ["a", 1], [1, "a"], [-1], [0], [10**9], [None], [{}], [[0], ["a"]]]
LISTS += [["a"] * 200]
OBJECTS = [{}, {"": ""}, {"type": "text"}, {"type": "json_object"}, {"a": {"b": [1, {"c": None}]}}]
OBJECTS += [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, {"0": 100}]
OBJECTS += [{"type": "function"}, {"0": -100}, {"-1": 1}, {"x": "y"}, {"1": 1e308}]
OBJECTS += [{"$ref": "file:///etc/passwd"}]
NASTY: tuple[Any, ...] = (None, True, False, *NUMBERS, *TEXTS, *LISTS, *OBJECTS)
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "2+2=", "max_tokens": 3},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "hi"}]},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [1, 2]},
    "/generate": {"text": "2+2=", "sampling_params": {"max_new_tokens": 3}},
}
BROKEN = [b"", b"{", b"[]", b"nul", b'"', b"{}" * 10, b"[" * 100_000, b"\xff\xfe", b"1" * 5000]
BROKEN += [b'{"prompt":' * 5000, b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}"]
BROKEN += [b'{"prompt": "\\ud800", "max_tokens": 1}', b'{"prompt": "a", "temperature": 1e999}']
BROKEN += [b'{"a":1,"a":2}']
HEADS = [b"\0\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\n\r\n"]
HEADS += [b"GET /%00%ff HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"]
HEADS += [b"\x16\x03\x01\x02\0\x01\0"]
POST = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
HEADS += [POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", POST + b"Content-Length: -1\r\n\r\n"]
HUGE = 17 * 2**20
KINDS = {"mutated": 70, "broken": 14, "head": 5, "odd": 10, "huge": 0.5, "large answer": 0.5}
"""Kinds of requests, and how many of 100 are of each."""


@dataclass(frozen=True)
class Sent:
    """The bytes of one request and how they are sent."""

    data: bytes
    manner: Manner
    what: str


def requests(openapi: dict[str, Any], seed: int) -> Iterator[Sent]:
    """Without end; the same for the same seed and description."""
    rng = random.Random(seed)
    operations = [(m.upper(), p) for p, ops in openapi["paths"].items() for m in ops]
    while True:
        manner: Manner = rng.choices(("whole", "slow", "vanishes", "half"), (90, 2, 5, 3))[0]
        kind = rng.choices([*KINDS], [*KINDS.values()])[0]
        if kind == "head":
            yield Sent(rng.choice(HEADS), manner, kind)
            continue
        if kind == "large answer":
            path, make = rng.choice([*LARGE_ANSWERS.values()])
            yield Sent(_request(rng, "POST", path, make()), manner, f"{kind} of {path}")
            continue
        method, path = rng.choice(operations)
        if kind == "odd":
            method = rng.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "BREW"))
            path = rng.choice(
                (path, path + "/", path + "?model=x", "/../etc/passwd", "//", "/%2e%2e/")
            )
        body = _body(rng, openapi, path, kind) if method == "POST" else b""
        yield Sent(_request(rng, method, path, body), manner, f"{kind} {method} {path}")


def _body(rng: random.Random, openapi: dict[str, Any], path: str, kind: str) -> bytes:
    if kind == "huge":
        return b'{"prompt": "' + b"a" * HUGE + b'"}'
    if kind == "broken":
        return rng.choice(BROKEN)
    body = dict(GOOD.get(path, {}))
    names = _fields(openapi, path) or ["prompt", "model"]
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        body[rng.choice(names)] = _value(rng)
    if rng.random() < 0.1:
        body.pop(rng.choice(list(body)))
    if path.startswith("/v1/") and rng.random() < 0.2:
        body["stream"] = True
    return json.dumps(body).encode()


def _value(rng: random.Random) -> Any:
    """A nasty value, or a few of them in a list or an object."""
    value = rng.choice(NASTY)
    if rng.random() < 0.15:
        return [rng.choice(NASTY) for _ in range(rng.randrange(4))]
    return {str(rng.choice(NASTY))[:20]: value} if rng.random() < 0.1 else value


def _fields(openapi: dict[str, Any], path: str) -> list[str]:
    """The names of the fields that a path's body may have."""
    operation = openapi["paths"].get(path, {}).get("post", {})
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
    return list(openapi["components"]["schemas"].get(name, {}).get("properties", {}))


def _request(rng: random.Random, method: str, path: str, body: bytes) -> bytes:
    kind = rng.choices(
        ("application/json", "text/plain", "", "multipart/form-data"), (94, 2, 2, 2)
    )[0]
    head = [f"{method} {path} HTTP/1.1", "Host: fuzz", "Connection: close", f"Content-Type: {kind}"]
    head.append(f"Content-Length: {len(body)}")
    if rng.random() < 0.05:
        head.append("X-Request-ID: " + rng.choice(("a" * 5000, "../../x", "é", '"', "a b")))
    return "\r\n".join(head).encode("latin-1") + b"\r\n\r\n" + body
