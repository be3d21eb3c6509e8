"""SGLang's endpoints about the server: aborts, health, state, resets and profiles."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served, wait_for

from serve.options.operations import Operations
from serve.sglang import health

SHORT = {"max_new_tokens": 80, "sampling_seed": 0}


def test_abort_ends_the_named_request_alone_with_what_there_is(serve) -> None:
    server: Served = serve(FakeEngine(step_s=0.01))
    body = {"text": ["ab", "cd"], "rid": ["one:a", "a"], "sampling_params": SHORT}
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.http.post, "/generate", json=body)
        wait_for(lambda: len(server.engine.running) == 2)
        assert server.http.post("/abort_request", json={"rid": "nobody's"}).status_code == 200
        assert server.http.post("/abort_request", json={"rid": "one:a"}).status_code == 200
        ended, whole = asked.result().json()
    assert ended["meta_info"]["finish_reason"]["type"] == "abort"
    assert ended["meta_info"]["id"] == "one:a"
    assert len(ended["text"]) < 80 and expected_answer("ab", 0, 80).startswith(ended["text"])
    assert whole["text"] == expected_answer("cd", 0, 80)
    assert len(server.engine.cancelled) == 1


def test_an_answer_of_openais_is_named_by_its_id_and_all_by_abort_all(serve) -> None:
    server: Served = serve(FakeEngine(step_s=0.01))
    body = {"prompt": "ab", "max_tokens": 250, "stream": True, "n": 2}
    for everything in (False, True):
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            lines = (line for line in answer.iter_lines() if line)
            first = json.loads(next(lines).removeprefix("data: "))
            abort = {"abort_all": True} if everything else {"rid": first["id"]}
            server.http.post("/abort_request", json=abort)
            rest = "".join(lines)
        assert rest.count('"finish_reason":"abort"') == 2 and rest.endswith("data: [DONE]")
    wait_for(lambda: not server.engine.running)


def test_a_key_aborts_its_own_requests_and_the_admin_key_everybodys(serve) -> None:
    operations = Operations(api_keys=("one", "two"), admin_api_key="admin")
    server: Served = serve(FakeEngine(step_s=0.01), operations=operations)

    def post(key: str, path: str, **body: Any) -> httpx.Response:
        return server.http.post(path, json=body, headers={"x-api-key": key})

    with ThreadPoolExecutor(3) as pool:
        long = {"sampling_params": {"max_new_tokens": 250}, "text": "ab"}
        asked = [pool.submit(post, key, "/generate", rid="same", **long) for key in ("one", "two")]
        wait_for(lambda: len(server.engine.running) == 2)
        for abort in ({"rid": "same"}, {"abort_all": True}):
            assert post("one", "/abort_request", **abort).status_code == 200
            wait_for(lambda: len(server.engine.running) == 1)
            reason = asked[0].result().json()["meta_info"]["finish_reason"]
            assert reason["type"] == "abort" and not asked[1].done()
            asked[0] = pool.submit(post, "one", "/generate", rid="same", **long)
            wait_for(lambda: len(server.engine.running) == 2)
        post("admin", "/abort_request", abort_all=True)
        reasons = [each.result().json()["meta_info"]["finish_reason"]["type"] for each in asked]
        assert reasons == ["abort"] * 2


def test_an_abort_that_names_nothing_is_400(fake: Served) -> None:
    for body in ({}, {"rid": ""}, {"rid": 3}):
        assert fake.refusal("/abort_request", body)


def test_health_generate_is_a_token_of_the_engine_and_probes_share_it(serve) -> None:
    server: Served = serve(FakeEngine())
    assert server.http.get("/health_generate").status_code == 200
    assert server.engine.generation_tokens == 1
    server.engine.go.clear()
    before = server.engine.prompt_tokens
    with ThreadPoolExecutor(4) as pool:
        probes = [pool.submit(server.http.get, "/health_generate") for _ in range(4)]
        wait_for(lambda: server.engine.running)
        server.engine.go.set()
        assert [probe.result().status_code for probe in probes] == [200] * 4
    assert server.engine.prompt_tokens == before + 1


def test_health_generate_is_503_where_no_token_comes(
    serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 0.2)
    engine = FakeEngine()
    server: Served = serve(engine)
    engine.go.clear()
    answer = server.http.get("/health_generate")
    assert answer.status_code == 503 and "no token" in answer.json()["error"]["message"]
    engine.go.set()
    wait_for(lambda: not engine.running)
    assert server.http.get("/health_generate").status_code == 200


def test_the_server_says_what_it_is(fake: Served) -> None:
    for path in ("/model_info", "/get_model_info"):
        info = fake.http.get(path).json()
        assert info["model_path"] == info["tokenizer_path"] == "/models/fake"
        assert info["is_generation"] is True
    for method in ("GET", "HEAD", "POST"):
        assert fake.http.request(method, "/ping").status_code == 200
    assert fake.http.get("/version").json()["version"]


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_sglangs_accept_length(serve, path: str) -> None:
    server: Served = serve(FakeEngine(width=3))
    state = server.http.get(path).json()["internal_states"][0]
    assert state["avg_spec_accept_length"] is None
    server.ask("/v1/completions", prompt="abc", max_tokens=9)
    info = server.http.get(path).json()
    assert info["internal_states"][0]["avg_spec_accept_length"] == 3.0
    assert (info["context_length"], info["served_model_name"]) == (256, "fake")


def test_load_is_what_runs_or_waits(serve) -> None:
    server: Served = serve(FakeEngine())
    assert server.http.get("/load").json() == {"server_load": 0}
    server.engine.go.clear()
    with ThreadPoolExecutor() as pool:
        pool.submit(server.ask, "/v1/completions", prompt="abc", max_tokens=4)
        wait_for(lambda: server.http.get("/load").json() == {"server_load": 1})
        server.engine.go.set()
    assert server.http.get("/load").json() == {"server_load": 0}


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_prefixes_in_use_are_kept_unless_the_client_waits(serve, path: str) -> None:
    server: Served = serve(FakeEngine(width=1, step_s=0.02))
    engine = server.engine
    assert server.ask(path) == {"success": True} and engine.num_resets == 1
    with ThreadPoolExecutor() as pool:
        pool.submit(server.ask, "/v1/completions", prompt="abc", max_tokens=25)
        wait_for(lambda: engine.running)
        refusal = server.refusal(path, {})
        assert engine.running, "the answer should have taken longer"
        assert refusal["code"] == "cache_in_use"
        waiting = server.http.post(path, params={"timeout": 5})
    assert waiting.json() == {"success": True} and engine.num_resets == 2
    for timeout in ("-1", "x", "inf", "nan"):
        answer = server.http.post(path, params={"timeout": timeout})
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "query"


def test_a_trace_lies_in_the_servers_directory_whatever_a_request_names(
    serve, tmp_path: Path
) -> None:
    traces, other = tmp_path / "traces", tmp_path / "other"
    http = serve(FakeEngine(), operations=Operations(profile_dir=traces)).http
    body = {"output_dir": str(other), "activities": ["CPU", "GPU"], "num_steps": None}
    assert http.post("/start_profile", json=body).json()["ignored"] == ["output_dir", "activities"]
    assert http.post("/start_profile").status_code == 409
    jnp.zeros(3).block_until_ready()
    assert http.post("/stop_profile", content=b"").json() == {"success": True}
    assert list(traces.rglob("*.xplane.pb")) and not other.exists()
    assert http.post("/stop_profile").status_code == 409


def test_profiles_that_can_not_be_are_400(serve, fake: Served, tmp_path: Path) -> None:
    http = serve(FakeEngine(), operations=Operations(profile_dir=tmp_path)).http
    for client, content, naming in (
        (http, b"{", "not valid JSON"),
        (http, b"[]", "JSON object"),
        (http, b'{"num_steps": 5}', "num_steps"),
        (fake.http, b"", "--profile-dir"),
        (fake.http, b"{}", "--profile-dir"),
    ):
        answer = client.post("/start_profile", content=content)
        assert answer.status_code == 400 and naming in answer.json()["error"]["message"]
