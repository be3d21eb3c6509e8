"""A client without a key gets OpenAI's 401, whose time tells nothing about keys."""

import hmac
from hashlib import sha256

import openai
import pytest
from fake_engine import FakeEngine
from fake_server import Served
from fastapi import FastAPI

from serve.asgi.auth import Authenticate, Client
from serve.asgi.graceful import bind, exposure
from serve.options.operations import Operations
from serve.options.serve_flags import parse_serve_flags

KEYS = ("first-key", "second-key", "third-key")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture
def guarded(serve) -> Served:
    return serve(FakeEngine(), operations=Operations(api_keys=KEYS))


def test_every_key_opens_and_openais_client_sends_it(guarded: Served) -> None:
    for key in KEYS:
        client = guarded.openai.with_options(api_key=key)
        assert client.completions.create(model="fake", prompt="a").choices[0].text
    with pytest.raises(openai.AuthenticationError) as caught:
        guarded.openai.completions.create(model="fake", prompt="a")
    assert caught.value.code == "invalid_api_key"


def test_anything_else_is_401_in_openais_form(guarded: Served) -> None:
    wrong = ["", "Bearer", "Bearer None", "Bearer first-ke", "Bearer first-keys"]
    wrong += ["Bearer FIRST-KEY", "first-key", "Basic first-key", "Bearer first-key second-key"]
    for header in (*wrong, "Bearer ä"):
        headers = {b"Authorization": header.encode("latin-1")}
        answer = guarded.http.post("/v1/completions", json={"prompt": "a"}, headers=headers)
        assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert not guarded.engine.prompt_tokens


def test_probes_and_metrics_are_open_and_everything_else_is_not(guarded: Served) -> None:
    for path in ("/health", "/ping", "/metrics", "/version", "/", "/page/page.js"):
        assert guarded.http.get(path).status_code == 200
    doubled = f"{guarded.http.base_url}//health"
    closed = ("/v1/models", "/server_info", "/nothing", "/health/../v1/models", "/page", doubled)
    for path in closed:
        assert guarded.http.get(path).status_code == 401
    assert guarded.http.get("/page/%2e%2e/v1/models").status_code == 404
    for path in ("/v1/chat/completions", "/tokenize", "/generate", "/flush_cache"):
        assert guarded.http.post(path, json=CHAT).status_code == 401


def test_every_key_is_compared_in_constant_time_wherever_the_right_one_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def spy(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", spy)
    keys = Authenticate(FastAPI(), KEYS, "admin")
    for given, accepted in [("first-key", True), ("third-key", True), ("x", False), ("", False)]:
        compared.clear()
        assert bool(keys.identify([f"Bearer {given}"], "10.0.0.1")) is accepted
        # Digests of one length: nor does a key's length show.
        digests = [sha256(key.encode()).digest() for key in (given, *KEYS, "admin")]
        assert compared == [(digests[0], digest) for digest in digests[1:]]


@pytest.mark.parametrize(
    ("keys", "admin_key", "given", "address", "client"),
    [
        (KEYS, None, ["Bearer first-key"], "127.0.0.1", Client("key 0", False, True)),
        (KEYS, "a", ["", "Bearer third-key"], "::1", Client("key 2", False, True)),
        (KEYS, "a", ["Bearer first-key", "Bearer a"], "::1", Client("admin key", True, True)),
        (KEYS, "a", ["Bearer b"], "127.0.0.1", None),
        ((), "a", ["Bearer a"], "10.0.0.1", Client("admin key", True, True)),
        ((), "a", ["Bearer b"], "127.0.0.1", Client("127.0.0.1")),
        ((), None, [""], "127.0.0.2", Client("127.0.0.2", True)),
        ((), None, ["Bearer b"], "::1", Client("::1", True)),
        ((), None, [""], "::ffff:127.0.0.1", Client("127.0.0.1", True)),
        ((), None, [""], "10.0.0.1", Client("10.0.0.1")),
        ((), None, [""], "::ffff:10.0.0.1", Client("10.0.0.1")),
        ((), None, [""], "2001:db8::1:2:3:4", Client("2001:db8::/64")),
        ((), None, [""], "fe80::1%eth0", Client("fe80::/64")),
        ((), None, [""], "", Client()),
    ],
)
def test_a_client_is_its_key_or_its_address_and_an_admin_by_its_key_or_on_this_machine(
    keys: tuple[str, ...], admin_key: str | None, given: list[str], address: str, client: object
) -> None:
    assert Authenticate(FastAPI(), keys, admin_key).identify(given, address) == client


PER_CLIENT = ("/abort_request", "/detokenize", "/generate", "/ping", "/tokenize", "/v1/")


def test_what_acts_on_all_requests_needs_the_admin_key(serve) -> None:
    operations = Operations(api_keys=KEYS, admin_api_key="admin")
    server: Served = serve(FakeEngine(), operations=operations)
    paths = server.http.get("/openapi.json").json()["paths"]
    acting = {path for path, methods in paths.items() if methods.keys() - {"get"}}
    guarded = {path for path in acting if not path.startswith(PER_CLIENT)}
    assert guarded == {"/flush_cache", "/reset_prefix_cache", "/start_profile", "/stop_profile"}
    for path in sorted(guarded):
        refused = server.http.post(path, headers={"x-api-key": KEYS[0]})
        assert refused.status_code == 403 and "--admin-api-key" in refused.text
        assert refused.json()["error"]["code"] == "admin_key_required"
        assert server.http.post(path, headers={"x-api-key": "admin"}).status_code != 403
    assert server.engine.num_resets == 2


def test_keys_come_from_the_flag_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(*argv: str) -> tuple[str, ...]:
        return parse_serve_flags(["--demo", *argv])[0].operations.api_keys

    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert keys() == ()
    monkeypatch.setenv("VLLM_API_KEY", "from-environment")
    assert keys() == ("from-environment",)
    assert keys("--api-key", "a", "b") == ("a", "b")


def test_a_server_that_others_reach_without_a_key_says_so() -> None:
    with bind("127.0.0.1", 0) as local, bind("0.0.0.0", 0) as public:
        assert "--api-key" in (exposure(public, ()) or "")
        assert not exposure(public, KEYS) and not exposure(local, ())
