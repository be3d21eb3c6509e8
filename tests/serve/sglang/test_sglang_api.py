"""SGLang's API: POST /generate, aborts, health, state, resets and profiles."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jax.numpy as jnp
import pytest
from fake_engine import FakeEngine, expected_answer
from fake_server import Served
from probe import wait_for

from eagle3_jax.engine import Request
from serve.options.operations import Operations
from serve.sglang import health

PATH = "/generate"


def ask(server: Served, sampling: object = None, **body: object) -> Any:
    return server.ask(PATH, sampling_params=sampling, **body)


@pytest.mark.parametrize("prompt", [{"text": "abc"}, {"input_ids": [97, 98, 99]}])
def test_a_prompt_gives_one_object(fake: Served, prompt: dict[str, Any]) -> None:
    answer = ask(fake, {"max_new_tokens": 9, "sampling_seed": 5}, rid="mine", **prompt)
    assert answer["text"] == expected_answer("abc", 5, 9)
    assert bytes(answer["output_ids"]).decode() == answer["text"]
    assert answer["meta_info"] == {
        "id": "mine",
        "finish_reason": {"type": "length", "length": 9},
        "prompt_tokens": 3,
        "completion_tokens": 9,
        "cached_tokens": 0,
        "cached_tokens_details": {"device": 0, "host": 0, "storage": 0},
        "seed": 5,
        "spec_accept_length": 9 / 5,
        "spec_accept_rate": 5 / 15,
        "spec_verify_ct": 5,
        "spec_num_correct_drafts": 5,
        "spec_num_proposed_drafts": 15,
    }


@pytest.mark.parametrize("batch", [{"text": ["ab", "c"]}, {"input_ids": [[97, 98], [99]]}])
def test_a_batch_gives_a_list_in_its_order(fake: Served, batch: dict[str, Any]) -> None:
    sampling = [{"max_new_tokens": 4, "sampling_seed": 1}, {}]
    first, second = ask(fake, sampling, rid=["x", "y"], **batch)
    assert first["text"] == expected_answer("ab", 1, 4)
    assert (first["meta_info"]["id"], second["meta_info"]["id"]) == ("x", "y")
    assert second["meta_info"]["completion_tokens"] == 128, "the default"
    assert [len(each["text"]) for each in ask(fake, {"max_new_tokens": 3}, **batch)] == [3, 3]


def test_n_choices_and_batches_of_one_are_lists(fake: Served) -> None:
    for prompt in ("ab", ["ab"]):
        answers = ask(fake, {"max_new_tokens": 4, "n": 2, "sampling_seed": 7}, text=prompt)
        assert [a["text"] for a in answers] == [expected_answer("ab", 7 + i, 4) for i in range(2)]
    assert len(ask(fake, {"max_new_tokens": 1}, text=["ab"])) == 1


def test_a_stream_holds_all_there_is_so_far(fake: Served) -> None:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 9, "sampling_seed": 5}}
    found, whole = fake.events(PATH, **body), expected_answer("abc", 5, 9)
    assert len(found) > 1 and found[0]["text"]
    for event in found:
        assert whole.startswith(event["text"]) and "index" not in event
        assert event["meta_info"]["completion_tokens"] == len(event["text"])
        assert len(event["output_ids"]) == len(event["text"])
    reasons = [event["meta_info"]["finish_reason"] for event in found]
    assert reasons == [None] * (len(found) - 1) + [{"type": "length", "length": 9}]
    assert found[-1]["text"] == whole


def test_a_streamed_batch_says_which_prompt_each_event_is_of(fake: Served) -> None:
    body = {"text": ["ab", "c"], "sampling_params": {"max_new_tokens": 5, "sampling_seed": 5}}
    last = {event["index"]: event["text"] for event in fake.events(PATH, **body)}
    assert last == {0: expected_answer("ab", 5, 5), 1: expected_answer("c", 5, 5)}


def test_a_stop_string_is_what_matched(fake: Served) -> None:
    stop = expected_answer("abc", 5, 9)[4]
    sampling = {"max_new_tokens": 9, "sampling_seed": 5, "stop": stop}
    reason = ask(fake, sampling, text="abc")["meta_info"]["finish_reason"]
    assert reason == {"type": "stop", "matched": stop}


def test_options_of_sglang_reach_the_engine(fake: Served, seen: list[Request]) -> None:
    """These are SamplingParams under another name; test_option_table has the others."""
    sampling = {"min_new_tokens": 2, "max_new_tokens": 4, "no_stop_trim": True}
    sampling |= {"logit_bias": {"5": 1.0}, "spaces_between_special_tokens": True}
    ask(fake, sampling, text="abc", lora_path=None, return_hidden_states=False, nonsense=1)
    found = seen[0].sampling
    assert (found.min_tokens, found.max_tokens) == (2, 4)
    assert found.include_stop_str_in_output and found.logit_bias == ((5, 1.0),)


@pytest.mark.xdist_group("served pair")
@pytest.mark.parametrize("start", [0, 3])
def test_log_probabilities_are_those_of_completions(server: Served, start: int) -> None:
    prompt, sampling = list(range(40, 60)), {"temperature": 0.8, "max_new_tokens": 6}
    body = {"input_ids": prompt, "return_logprob": True, "top_logprobs_num": 2}
    body |= {"logprob_start_len": start, "return_text_in_logprobs": True}
    answer = ask(server, sampling | {"sampling_seed": 5}, **body)
    meta, ids = answer["meta_info"], answer["output_ids"]
    plain = {"prompt": prompt, "temperature": 0.8, "max_tokens": 6, "seed": 5}
    plain |= {"echo": True, "logprobs": 2, "return_token_ids": True}
    choice = server.ask("/v1/completions", **plain)["choices"][0]
    logprobs = choice["logprobs"]
    assert ids == choice["token_ids"]
    rows = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    values = logprobs["token_logprobs"][start:]
    assert [row[0] for row in rows] == [None, *values[1:]]
    assert [row[1] for row in rows] == prompt[start:] + ids
    assert [row[2] for row in rows] == logprobs["tokens"][start:]
    tops = meta["input_top_logprobs"] + meta["output_top_logprobs"]
    assert tops[0] is None and all(len(top) == 2 for top in tops[1:])
    for top, texts in zip(tops[1:], logprobs["top_logprobs"][start + 1 :], strict=True):
        assert top[0][0] >= top[1][0]
        assert all(texts[text] >= value for value, _, text in top)
    assert "input_token_logprobs" not in ask(server, sampling, input_ids=prompt)["meta_info"]


@pytest.mark.xdist_group("served pair")
def test_of_the_prompt_nothing_is_told_unless_its_start_is_given(server: Served) -> None:
    body = {"input_ids": [40, 41, 42], "return_logprob": True, "logprob_start_len": -1}
    meta = ask(server, {"max_new_tokens": 3}, **body)["meta_info"]
    assert meta["input_token_logprobs"] == [] and len(meta["output_token_logprobs"]) == 3
    assert "output_top_logprobs" not in meta
    assert meta["output_token_logprobs"][0][2] is None


@pytest.mark.xdist_group("served pair")
def test_a_regex_is_held_to(server: Served) -> None:
    pytest.importorskip("llguidance")
    answer = ask(server, {"regex": "(yes|no)", "max_new_tokens": 20}, text="hello")
    assert answer["text"] in ("yes", "no")
    assert answer["meta_info"]["finish_reason"]["type"] == "stop"


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
