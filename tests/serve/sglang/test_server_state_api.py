"""What the server says of itself, and what clients may reset."""

import threading
import time

import pytest
from fake_engine import FakeEngine
from fake_server import Served

RESETS = ("/flush_cache", "/reset_prefix_cache")


@pytest.mark.parametrize("path", ["/model_info", "/get_model_info"])
def test_model_info_names_the_directory_the_tokenizer_is_in(fake: Served, path: str) -> None:
    info = fake.http.get(path).json()
    assert info["model_path"] == info["tokenizer_path"] == "/models/fake"
    assert info["is_generation"] is True


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_server_info_has_sglangs_accept_length(serve, path: str) -> None:
    server = serve(FakeEngine(width=3))
    state = server.http.get(path).json()["internal_states"][0]
    assert state["avg_spec_accept_length"] is None
    server.http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 9})
    info = server.http.get(path).json()
    assert info["internal_states"][0]["avg_spec_accept_length"] == 3.0
    assert (info["context_length"], info["served_model_name"]) == (256, "fake")


def test_load_is_what_runs_or_waits(serve) -> None:
    engine = FakeEngine()
    server = serve(engine)
    assert server.http.get("/load").json() == {"server_load": 0}
    engine.go.clear()
    asking = ask_in_background(server)
    while server.http.get("/load").json() != {"server_load": 1}:
        time.sleep(0.005)
    engine.go.set()
    asking.join()
    assert server.http.get("/load").json() == {"server_load": 0}


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_ping_is_health(fake: Served, method: str) -> None:
    assert fake.http.request(method, "/ping").status_code == 200


def test_version_is_the_packages(fake: Served) -> None:
    assert fake.http.get("/version").json()["version"]


@pytest.mark.parametrize("path", RESETS)
def test_an_idle_engine_drops_its_prefixes(serve, path: str) -> None:
    server = serve(FakeEngine())
    assert server.http.post(path).json() == {"success": True}
    assert server.engine.num_resets == 1


@pytest.mark.parametrize("path", RESETS)
def test_prefixes_in_use_are_kept_unless_the_client_waits(serve, path: str) -> None:
    engine = FakeEngine(width=1, step_s=0.02)
    server = serve(engine)
    asking = ask_in_background(server, max_tokens=25)
    while not engine.running:
        time.sleep(0.005)
    refusal = server.http.post(path)
    assert engine.running, "the answer should have taken longer"
    assert refusal.status_code == 400 and refusal.json()["error"]["code"] == "cache_in_use"
    waiting = server.http.post(path, params={"timeout": 5})
    asking.join()
    assert waiting.json() == {"success": True} and engine.num_resets == 1


@pytest.mark.parametrize("timeout", ["-1", "x", "inf", "nan"])
def test_a_wait_that_is_no_time_is_400(fake: Served, timeout: str) -> None:
    answer = fake.http.post("/flush_cache", params={"timeout": timeout})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "query"


def ask_in_background(server: Served, max_tokens: int = 4) -> threading.Thread:
    body = {"prompt": "abc", "max_tokens": max_tokens}
    thread = threading.Thread(
        target=lambda: server.http.post("/v1/completions", json=body).raise_for_status()
    )
    thread.start()
    return thread
